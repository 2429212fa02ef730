"""python -m hearth_cache.ask against a fake worker: its requests, output, answer file and exit
codes."""

import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import python_support
from python_support import PACKAGE

import grpc
from hearth_cache.v1 import inference_pb2 as pb

CONTEXT = "The light was lit in 1801."
THREE = ('{"id": "who", "question": "Who?", "kind": "names"}\n'
         '{"id": "when", "question": "When?", "kind": "dates"}\n'
         '{"id": "end", "ending": " In 1802", "kind": "dates"}\n')
WHO = '{"question": "Who?"}'
PUT = "\n\nQuestion: {}\nAnswer:"
# A line of an answer file of the removed command `hearthctl ask`. Such files must still be
# accepted.
OLD_LINE = ('{"id":"who","answer":"Hello there","finish_reason":"length","prompt_tokens":50,'
            '"cached_tokens":0,"computed_tokens":7,"source_tier":"none","ttft_ms":25.0,'
            '"total_ms":0.0,"token_ids":[72,32],"context_sha256":'
            '"fc40bccd46cceef74659a7efb3ebff8ee52e9d4c7b114aed0b67516db9b80186",'
            '"question_sha256":'
            '"f2e47540cef9331d4327b9e8a0a7814823e05a770bfd0bcc37c67786d2cb80bc","model":"aa"}')


def rendered(prompt):
    """Returns the prompt as text; in this test each byte is one token."""
    if prompt.HasField("token_ids"):
        return bytes(prompt.token_ids.ids).decode()
    if prompt.HasField("text"):
        return prompt.text
    return "".join(f"{message.role}:{''.join(part.text for part in message.parts)}\n"
                   for message in prompt.chat.messages)


class FakeWorker:

    def __init__(self):
        self.generated, self.prefilled, self.weights = [], [], "aa"
        self.finds, self.full_for, self.most_answers = 0, 0, 1000
        self.unanswerable, self.lock = "nothing ends so", threading.Lock()
        self.may_continue = threading.Event()  # the second and later answers wait for it
        self.may_continue.set()
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers([self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self):
        self._server.stop(None).wait()

    def service(self, details):
        name = details.method.rsplit("/", 1)[1]
        kind = {"GetModel": pb.GetModelRequest, "Tokenize": pb.TokenizeRequest,
                "Prefill": pb.PrefillRequest, "Generate": pb.GenerateRequest}[name]
        return grpc.unary_stream_rpc_method_handler(
            getattr(self, name), kind.FromString, lambda message: message.SerializeToString())

    def GetModel(self, request, context):
        made = pb.GetModelResponse()
        made.fingerprint.fields.add(name="weights_sha256", text=self.weights)
        yield made

    def Tokenize(self, request, context):
        yield pb.TokenizeResponse(token_ids=rendered(request.prompt).encode())

    def Prefill(self, request, context):
        self._refuse(request, context)
        self.prefilled.append(request)
        tokens = len(rendered(request.prompt))
        yield pb.PrefillResponse(prompt_tokens=tokens, computed_tokens=tokens, total_ms=3)

    def Generate(self, request, context):
        self._refuse(request, context)
        with self.lock:
            self.most_answers -= 1
            if self.most_answers < 0:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the worker is shutting down")
            self.generated.append(request)
        if len(self.generated) > 1:
            self.may_continue.wait()
        found = self.finds if request.cache == pb.CACHE_MODE_READ else 0
        yield pb.GenerateResponse(started=pb.Started(
            prompt_tokens=len(rendered(request.prompt)), cached_tokens=found))
        for word in ("Hello", " there"):
            yield pb.GenerateResponse(token=pb.GeneratedToken(ids=[ord(word[0])], text=word))
        yield pb.GenerateResponse(finished=pb.Finished(
            reason=pb.FINISH_REASON_LENGTH, generated_tokens=2, computed_tokens=7, ttft_ms=25))

    def _refuse(self, request, context):
        with self.lock:
            self.full_for -= 1
            if self.full_for >= 0:
                context.set_trailing_metadata((("retry-after-ms", "1"),))
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the request queue is full")
        if rendered(request.prompt).endswith(self.unanswerable):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "too long")


class AskCommand(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.worker = FakeWorker()
        self.addCleanup(self.worker.close)
        self.write("context", CONTEXT)
        self.answers = self.folder / "answers"

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def ask(self, questions, *flags, context="--context", code=0):
        """Runs the command; returns the lines of [stdout, stderr], with N for each time."""
        self.write("questions", questions)
        words = ["--worker", self.worker.address, context, "context", "--questions", "questions",
                 "--parallel", "1", *map(str, flags)]
        done = subprocess.run([sys.executable, "-B", "-m", "hearth_cache.ask", *words],
                              cwd=self.folder, capture_output=True, text=True, timeout=120,
                              env={**os.environ, "PYTHONPATH": str(PACKAGE)}, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return [re.sub(r"[\d.]+ (ms|s)\b", "N ms", text).splitlines()
                for text in (done.stdout, done.stderr)]

    def asked(self):
        return [rendered(request.prompt) for request in self.worker.generated]

    def keep(self, *flags, code=0, questions=THREE):
        return self.ask(questions, "--output", self.answers, *flags, code=code)

    def test_context_is_prefilled_once(self):
        self.worker.finds = len(CONTEXT)
        out, err = self.ask(THREE, "--max-new-tokens", 5, "--stop", ".", "--durability", "disk")
        self.assertEqual(out, [
            "-- who --", "Hello there", "-- when --", "Hello there", "-- end --", "Hello there",
            "context: 26 tokens shared, 0 cached, 26 computed, ready after N ms",
            "questions: 3 answered, 0 failed; tokens: 78 cached, 21 computed (78.8% cached); first "
            "token after N ms (median), N ms (p99)",
            "6 new tokens in N ms, 3 ended by length"])
        self.assertEqual(err[0], "[1/3] who: 26 of 50 prompt tokens cached, first token after "
                                 "N ms, 2 new tokens in N ms")
        (prefill,) = self.worker.prefilled
        self.assertEqual(prefill, pb.PrefillRequest(
            durability="DURABILITY_DISK", prompt=pb.PromptInput(
                token_ids=pb.TokenIds(ids=CONTEXT.encode()), breakpoints=[26])))
        self.assertEqual(self.asked(), [CONTEXT + PUT.format("Who?"), CONTEXT + PUT.format("When?"),
                                        CONTEXT + " In 1802"])
        for request in self.worker.generated:
            self.assertEqual((list(request.prompt.breakpoints), request.cache,
                              request.max_new_tokens, list(request.stop), request.fits_context),
                             ([26], pb.CACHE_MODE_READ, 5, ["."], False))

    def test_json_prints_answers_then_report(self):
        self.worker.finds = len(CONTEXT)
        out, err = self.ask(THREE, "--json")
        self.assertEqual(err, [])
        *answers, report = map(json.loads, out)
        self.assertEqual(answers[0], {
            "id": "who", "kind": "names", "answer": "Hello there", "finish_reason": "length",
            "prompt_tokens": 50, "cached_tokens": 26, "computed_tokens": 7, "source_tier": "none",
            "ttft_ms": 25.0, "total_ms": 0.0, "token_ids": [72, 32]})
        self.assertAlmostEqual(report.pop("hit_rate"), 78 / 99)
        self.assertGreater(report.pop("total_ms"), 0)
        self.assertEqual(report, {
            "questions": 3, "answered": 3, "failed": 0, "cached_tokens": 78, "computed_tokens": 21,
            "new_tokens": 6, "ttft_median_ms": 25.0, "ttft_p99_ms": 25.0, "answered_before": 0,
            "unanswered": 0, "finish_reasons": {"length": 3}, "context": {
                "tokens": 26, "cached_tokens": 0, "computed_tokens": 26, "source_tier": "none",
                "total_ms": 3.0}})

    def test_cache_mode_applies_to_context(self):
        for mode, sent in (("write", pb.CACHE_MODE_OFF), ("read", pb.CACHE_MODE_READ),
                           ("off", pb.CACHE_MODE_OFF)):
            _, err = self.ask(WHO, "--cache", mode)
            self.assertEqual(len(self.worker.prefilled), 1, "write alone keeps the context")
            self.assertEqual(self.worker.generated[-1].cache, sent)
            self.assertEqual(len(err), 1, "nothing is missing")

    def test_answer_flags_set_request_fields(self):
        self.ask(WHO, "--temperature", 0.5, "--top-k", 3, "--top-p", 0.5, "--seed", 7, "--min-p",
                 0.25, "--repetition-penalty", 2, "--presence-penalty", 1, "--frequency-penalty",
                 -1, "--logit-bias", "5=-1.5", "--logit-bias", "6=2", "--stop-token-id", 8,
                 "--bad-token-id", 9, "--min-tokens", 1, "--generation-config", "auto",
                 "--ignore-eos", "--adapter", "tales", "--kv-cache", "quantized",
                 "--kv-quantization", "bits=4", "--speculate", 0, "--keep", "10m", "--priority", -2)
        (request,), (prefill,) = self.worker.generated, self.worker.prefilled
        request.ClearField("prompt")
        self.assertEqual(request, pb.GenerateRequest(
            max_new_tokens=128, ignore_eos=True, adapter="tales", kv_cache="quantized",
            kv_quantization="bits=4", speculate=0, keep_s=600, priority=-2,
            cache=pb.CACHE_MODE_READ, sampling=pb.SamplingParams(
                temperature=0.5, top_k=3, top_p=0.5, seed=7, min_p=0.25, repetition_penalty=2,
                presence_penalty=1, frequency_penalty=-1, logit_bias={5: -1.5, 6: 2},
                stop_token_ids=[8], bad_token_ids=[9], min_tokens=1, server_defaults=True)))
        self.assertEqual((prefill.adapter, prefill.keep_s, prefill.priority), ("tales", 600, -2))

    def test_schema_file_constrains_answers(self):
        path = self.folder / "schema.json"
        path.write_text('{"type": "boolean"}')
        self.ask(WHO, "--json-schema", path)
        self.assertEqual(self.worker.generated[-1].grammar,
                         pb.Grammar(json_schema='{"type": "boolean"}'))
        path.write_text(" \n")
        for wrong, said in ((path, "is empty"), (self.folder / "gone", "No such file")):
            out, err = self.ask(WHO, "--json-schema", wrong, code=2)
            self.assertEqual(out, [])
            self.assertRegex(err[-1], f"--json-schema: .*{said}")
            self.assertIn(str(wrong), err[-1])
        self.assertEqual(len(self.worker.generated), 1)

    def test_question_becomes_next_chat_message(self):
        self.write("context", '[{"role": "system", "content": "Be brief."}]')
        self.ask(WHO, context="--context-chat")
        self.assertEqual(rendered(self.worker.prefilled[0].prompt), "system:Be brief.\n")
        self.assertEqual(self.asked(), ["system:Be brief.\nuser:Who?\n"])

    def test_token_ids_are_sent_unchanged(self):
        self.write("context", "65, 66\n")
        self.ask('{"token_ids": [67]}\n{"token_ids": [68, 69]}\n', context="--context-token-ids")
        self.assertEqual(self.asked(), ["ABC", "ABDE"])

    def test_busy_worker_is_retried(self):
        self.worker.full_for = 9
        out, _ = self.ask(WHO)
        self.assertEqual(out[:2], ["-- 1 --", "Hello there"])

    def test_short_cache_hit_warns_once(self):
        self.worker.finds = 16
        _, err = self.ask('{"question": "Who?"}\n{"question": "When?"}\n')
        self.assertEqual(len(err), 3)
        self.assertEqual(err[0], "hearth_cache.ask: 1 found only 16 of 26 context tokens in the "
                                 "cache (logged once): the worker's --pool-bytes or its store may "
                                 "be too small")

    def test_stopped_run_continues(self):
        self.worker.most_answers = 2
        out, err = self.keep(code=1)
        self.assertEqual(out[-1], "1 were not answered")
        self.assertEqual(err[-1], f"hearth_cache.ask: UNAVAILABLE: {self.worker.address}: the "
                                  "worker is shutting down")
        self.worker.most_answers = 1000
        out, err = self.keep()
        self.assertEqual(out[-1], "2 were already answered")
        self.assertEqual(err[-1][:10], "[1/1] end:")
        self.assertEqual(self.asked()[-1], CONTEXT + " In 1802")
        asked = len(self.asked())
        self.assertEqual(self.keep(), [["3 were already answered"], []])
        self.assertEqual(len(self.asked()), asked)

    def test_failed_questions_are_asked_again(self):
        self.worker.unanswerable = "In 1802"
        out, err = self.keep(code=1)
        self.assertIn("2 answered, 1 failed", out[1])
        self.assertEqual(err[-1], f"[3/3] end: failed: {self.worker.address}: too long")
        self.worker.unanswerable = "nothing"
        self.assertEqual(self.keep()[0][-1], "2 were already answered")

    def test_hearthctl_answer_file_is_continued(self):
        self.answers.write_text(OLD_LINE + "\n")
        who = '{"id": "who", "question": "Who?"}'
        self.assertEqual(self.keep(questions=who)[0], ["1 were already answered"])
        self.answers.unlink()
        self.keep(questions=who)
        old, new = json.loads(OLD_LINE), json.loads(self.answers.read_text())
        self.assertEqual(new, old)
        self.assertEqual(list(new), list(old))

    def test_answer_file_mismatch_is_refused(self):
        who, files = '{"id": "who", "question": "Who?"}', str(self.answers)
        self.answers.write_text(OLD_LINE + "\n")
        two = who + '\n{"id": "when", "question": "When?"}'
        for flags, questions, said in (
                ((), who.replace("Who?", "Who else?"), f'{files} has an answer to another question '
                 '"who": its text or an answer flag differs'),
                (("--max-new-tokens", 9), who, "another question"),
                (("--seed", 1), who, "another question")):
            out, err = self.keep(*flags, questions=questions, code=1)
            self.assertEqual(out, [])
            self.assertIn("FAILED_PRECONDITION: ", err[0])
            self.assertIn(said, err[0])
        self.worker.weights = "bb"
        out, err = self.keep(questions=two, code=1)
        self.assertEqual(out, ["1 were already answered", "1 were not answered"])
        self.assertIn("line 1 is of another model (aa, not bb); pass another --output",
                      err[0])
        self.write("context", "Another light.")
        self.assertIn("line 1 answers a question about another context",
                      self.keep(questions=who, code=1)[1][0])
        self.assertEqual(self.asked(), [])
        self.assertEqual(self.answers.read_text(), OLD_LINE + "\n")

    def test_invalid_input_ends_before_any_call(self):
        for questions, flags, said in (
                ('{"question": 1}', (), 'questions: line 1: has a wrong field or type: "question"'),
                ("[1]", (), "questions: line 1: is not a JSON object"),
                ('{"ending": "\\udcff"}', (), "has a lone surrogate"),
                (WHO, ("--template", "no place"), "--template: must contain {question}"),
                (WHO, ("--parallel", "65"), "must be an integer in [1, 64]"),
                (WHO, ("--logit-bias", "5"), "must be TOKEN_ID=NUMBER; got 5"),
                (WHO, ("--keep", "soon"), 'like 250ms, 2s or 1m; got "soon"'),
                (WHO, ("--output", "questions"), "--output is also an input file")):
            out, err = self.ask(questions, *flags, code=2)
            self.assertEqual(out, [])
            self.assertEqual(len(err), 1, err)
            self.assertIn(said, err[0])
        self.assertEqual(self.ask(WHO, context="--context-chat", code=2)[1][0],
                         "hearth_cache.ask: context: Expecting value: line 1 column 1 (char 0)")
        (self.folder / "context").unlink()
        self.assertIn("context: No such file", self.ask(WHO, code=1)[1][0])
        self.assertEqual(self.asked(), [])

    def test_unreachable_worker_exits_3(self):
        self.worker.close()
        _, err = self.ask(WHO, "--wait", "300ms", code=3)
        self.assertRegex(err[0], "^hearth_cache.ask: UNAVAILABLE: no worker at .*; start one with")

    def ended_early(self, end, code):
        """Calls end(program) after the first of 200 answers. Returns what the program then prints
        to stderr. Until then, the worker answers no second question."""
        self.worker.may_continue.clear()
        self.addCleanup(self.worker.may_continue.set)
        self.write("questions", "".join(f'{{"ending": " {i}"}}\n' for i in range(200)))
        with subprocess.Popen(
                [sys.executable, "-B", "-m", "hearth_cache.ask", "--worker", self.worker.address,
                 "--context", "context", "--questions", "questions", "--parallel", "1"],
                cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**os.environ, "PYTHONPATH": str(PACKAGE)}) as program:
            program.stdout.readline()
            end(program)
            program.stdout.close()
            self.worker.may_continue.set()
            said = program.stderr.read()
        self.assertEqual(program.returncode, code)
        self.assertNotIn("Traceback", said)
        self.assertNotIn("Exception", said)
        self.assertLess(len(self.asked()), 200)
        return said

    def test_closed_stdout_exits_1(self):
        self.ended_early(lambda program: None, 1)

    def test_signal_exits_130(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            self.worker.generated.clear()
            with self.subTest(number):
                said = self.ended_early(lambda program: (program.send_signal(number),
                                                         program.stdout.read()), 130)
                self.assertRegex(said, "hearth_cache.ask: interrupted; .*\n$")


if __name__ == "__main__":
    python_support.main()
