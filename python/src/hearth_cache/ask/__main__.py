"""The command `python -m hearth_cache.ask` (see its --help)."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, Optional, Union, cast

from hearth_cache._program import (
    FAILED, INTERRUPTED, OK, UNREACHABLE, Parser, access_of, duration, shown, utf8, whole)
from hearth_cache.aio.worker import DEFAULT_TEMPLATE, AsyncWorker
from hearth_cache.answers import Answer, Asked
from hearth_cache.ask._answers import (
    AnswerFile, AskReport, answer_line, json_line, model_name, ms_text)
from hearth_cache.ask._inputs import (
    QUESTION_PLACE, Context, Question, parse_questions, read_context, read_file, text_of)
from hearth_cache.errors import DeadlineExceeded, HearthError, Unavailable
from hearth_cache.prompts import GenerateOptions, generate_request
from hearth_cache.v1 import inference_pb2

EXAMPLES = """\
  python -m hearth_cache.ask --context handbook.txt --questions questions.jsonl --parallel 4
  python -m hearth_cache.ask --context handbook.txt --questions questions.jsonl \\
      --output answers.jsonl
  python -m hearth_cache.ask --context-chat chat.json --questions questions.jsonl --json
      (chat.json as in hearthctl generate; each question is the user's next message)

  {"id": "q1", "question": "Which river?"}      a line of --questions: inserted into --template
  {"ending": " The river is called"}            continues the context as it is; also "prompt"
  {"question": "Since when?", "kind": "dates"}  "kind" is copied to the answer

The worker computes the context once and keeps it for all questions. With --output each answer is
added to the file when it is complete. If the command stops, run it again: it asks only the
questions without an answer. If the file has answers to another context or question, or of another
model, the command refuses it. Each line of the file and of --json has id, kind, answer,
finish_reason, prompt_tokens, cached_tokens, computed_tokens, source_tier, ttft_ms (from the
question's start to its first token, by the worker's clock), total_ms and token_ids, or error and
error_code; the last line of --json is the report. Exit code 1 if a question has no answer.
"""
DEADLINE_S = 3600.0  # deadline of a call, including retries while the worker is busy
CONNECT_S = 10.0
MANY_RETRIES = 1_000_000


class Flag(NamedTuple):
    """A flag that sets the field `name` of GenerateRequest or SamplingParams."""

    flag: str
    name: str
    meaning: str
    how: dict[str, Any]


UINT, ULONG = whole(0, (1 << 32) - 1), whole(0, (1 << 64) - 1)


def bias(text: str) -> tuple[int, float]:
    token, equals, number = text.partition("=")
    try:
        return UINT(token if equals else ""), float(number)
    except (argparse.ArgumentTypeError, ValueError):
        raise argparse.ArgumentTypeError(f"must be TOKEN_ID=NUMBER; got {text}") from None


def keep(text: str) -> int:
    return int(min(duration(text), 3600.0))


def schema(path: str) -> str:
    try:
        made = text_of(read_file(path), path)
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not made.strip():
        raise argparse.ArgumentTypeError(f"{path} is empty")
    return made


def several(kind: Callable[[str], Any]) -> dict[str, Any]:
    return {"type": kind, "action": "append"}


METAVARS: dict[Any, str] = {float: "NUMBER", utf8: "TEXT", keep: "DURATION", bias: "ID=BIAS",
                           schema: "FILE"}
ANSWER_FLAGS = (
    Flag("--max-new-tokens", "max_new_tokens", "maximum tokens to generate (default: 128)",
         {"type": UINT, "default": 128}),
    Flag("--stop", "stop", "end the answer at this text; may be repeated", several(utf8)),
    Flag("--ignore-eos", "ignore_eos", "continue after the model's end of text",
         {"action": "store_true", "default": None}),
    Flag("--json-schema", "json_schema", "file with the JSON schema that each answer must obey",
         {"type": schema}),
    Flag("--generation-config", "server_defaults",
         "auto: temperature, top-k and top-p default to the model's own (see hearthctl model); "
         "none (the default): greedy", {"choices": ("auto", "none")}),
    Flag("--temperature", "temperature", "0 (the default) is greedy", {"type": float}),
    Flag("--top-k", "top_k", "sample from the k likeliest tokens; 0 is off", {"type": UINT}),
    Flag("--top-p", "top_p", "sample the likeliest tokens that sum to p; 0 is off",
         {"type": float}),
    Flag("--seed", "seed", "the same seed gives the same answer; default: random",
         {"type": ULONG}),
    Flag("--min-p", "min_p", "skip tokens less than p times as likely as the likeliest",
         {"type": float}),
    Flag("--repetition-penalty", "repetition_penalty",
         "divide logits of tokens in prompt or answer by this; 1 is off", {"type": float}),
    Flag("--presence-penalty", "presence_penalty",
         "subtract this from the logits of tokens in the answer", {"type": float}),
    Flag("--frequency-penalty", "frequency_penalty", "subtract this for each occurrence",
         {"type": float}),
    Flag("--logit-bias", "logit_bias", "ID=BIAS: add BIAS to a token's logit; may be repeated",
         several(bias)),
    Flag("--stop-token-id", "stop_token_ids", "end the answer before this token; may be repeated",
         several(UINT)),
    Flag("--bad-token-id", "bad_token_ids", "never generate this token; may be repeated",
         several(UINT)),
    Flag("--min-tokens", "min_tokens", "do not end before this many tokens", {"type": UINT}),
    Flag("--adapter", "adapter", "use this adapter of the worker (hearth-worker --adapter "
         "NAME=DIR)", {"type": utf8}),
    Flag("--cache", "cache", "whether to read the context from the cache and to store it",
         {"choices": ("default", "read", "write", "off")}),
    Flag("--kv-cache", "kv_cache", "how to store keys and values, as in hearth-worker --kv-cache",
         {"type": utf8}),
    Flag("--kv-quantization", "kv_quantization",
         "options of --kv-cache quantized, as in hearth-worker", {"type": utf8}),
    Flag("--speculate", "speculate",
         "tokens to draft from the text and verify in one step; 0 is off", {"type": UINT}),
    Flag("--durability", "durability", "durability of the context, as in hearthctl generate",
         {"choices": ("default", "memory", "disk", "sync", "shared")}),
    Flag("--keep", "keep_s", "evict the context last within the tenant for this long, at most "
         "1h", {"type": keep}),
    Flag("--priority", "priority", "eviction priority within the tenant; each step doubles the "
         "context's value", {"type": whole(-8, 8)}),
)


def parse(parser: Parser, words: Optional[Sequence[str]]) -> argparse.Namespace:
    parser.add_server("worker", 7070)
    add = parser.add_argument
    add("--wait", type=duration, default=0.0, metavar="DURATION",
        help="wait up to this long for the worker to listen: 30s, 500ms (default: do not wait)")
    context = parser.add_mutually_exclusive_group(required=True)
    for flag, kind, meaning in (
            ("--context", "text", "context: a text file"),
            ("--context-chat", "chat", "context: a chat's JSON file, as in hearthctl generate"),
            ("--context-token-ids", "token_ids", "context: a file of token ids")):
        context.add_argument(flag, dest=kind, metavar="FILE", help=meaning)
    add("--questions", required=True, metavar="FILE",
        help="a file with one JSON object on each line; - is standard input")
    add("--output", metavar="FILE", help="file to append answers to, one JSON line each")
    add("--template", default=DEFAULT_TEMPLATE, type=utf8, metavar="TEXT",
        help='text to insert a question into; default: an empty line, "Question: {question}" and '
             '"Answer:"')
    add("--parallel", type=whole(1, 64), default=8, metavar="N",
        help="questions to ask at a time, at most 64 (default: 8)")
    add("--json", action="store_true", help="print a JSON object for each answer, then the report")
    answer = parser.add_argument_group("answers")
    for one in ANSWER_FLAGS:
        how = dict(one.how)
        if "type" in how:
            how["metavar"] = METAVARS.get(how["type"], "N")
        answer.add_argument(one.flag, dest=one.name, help=one.meaning, **how)
    flags = parser.parse_args(words)
    if QUESTION_PLACE not in flags.template:
        parser.error(f"--template: must contain {QUESTION_PLACE}")
    return flags


def options_of(flags: argparse.Namespace) -> GenerateOptions:
    made = {one.name: getattr(flags, one.name) for one in ANSWER_FLAGS
            if getattr(flags, one.name) is not None}
    if "server_defaults" in made:
        made["server_defaults"] = made["server_defaults"] == "auto"
    if "logit_bias" in made:
        made["logit_bias"] = dict(made["logit_bias"])
    if made.get("repetition_penalty") == 1:
        del made["repetition_penalty"]  # 1 is the default, which answer files omit
    return cast("GenerateOptions", made)


class Asker:
    """One run of the program, after its files are read."""

    def __init__(self, flags: argparse.Namespace, answers: Optional[AnswerFile],
                 questions: list[Question]) -> None:
        self.report = AskReport()
        self._flags, self._answers = flags, answers
        self._open: list[Question] = []
        for question in questions:
            if answers is not None and answers.has(question):
                self.report.answered_before += 1
            else:
                self._open.append(question)
        self._expected = 0  # cached tokens expected for each question; 0: not checked
        self._model, self._start = "", time.monotonic()

    @property
    def is_done(self) -> bool:
        return not self._open

    async def ask(self, context: Context, options: GenerateOptions) -> None:
        """Asks the questions that have no answer yet. An error that is not about one question ends
        the run."""
        flags = self._flags
        model = await self._reach()
        if self._answers is not None:
            self._model = model_name(model, options.get("adapter", ""))
            self._answers.check_model(self._model)

        def kept(made: inference_pb2.PrefillResponse) -> None:
            self.report.context = made
            if options.get("cache", "default") == "default":
                self._expected = made.prompt_tokens

        async with AsyncWorker(flags.address, access=access_of(flags),
                               deadline_s=DEADLINE_S) as worker:
            asked = worker.ask(context.prompt, [question.ending for question in self._open],
                               template=QUESTION_PLACE, parallel=flags.parallel, on_context=kept,
                               **options)
            async with aclosing(cast(Any, asked)) as answers:
                async for one in cast("AsyncIterator[Asked]", answers):
                    answer = one.answer or one.error
                    if answer is not None:  # always true: ask() returns an answer or an error
                        self._take(self._open[one.number], answer)

    async def _reach(self) -> inference_pb2.GetModelResponse:
        flags = self._flags
        async with AsyncWorker(flags.address, access=access_of(flags),
                               deadline_s=max(flags.wait, CONNECT_S),
                               retries=MANY_RETRIES if flags.wait > 0 else 0) as worker:
            try:
                return await worker.model()
            except (Unavailable, DeadlineExceeded) as error:
                raise NotReached(
                    f"no worker at {error}; start one with hearth-worker --model DIR --listen "
                    f"{flags.address}, or pass --worker ADDR") from None

    def _take(self, question: Question, answer: Union[Answer, HearthError]) -> None:
        self.report.add(answer)
        line = answer_line(question, answer)
        if self._answers is not None and isinstance(answer, Answer):
            self._answers.append(question, line, self._model)
        if isinstance(answer, Answer) and answer.cached_tokens < self._expected:
            say(f"hearth_cache.ask: {question.id} found only {answer.cached_tokens} of "
                f"{self._expected} context tokens in the cache (logged once): the worker's "
                "--pool-bytes or its store may be too small")
            self._expected = 0
        if self._flags.json:
            print(json_line(line), flush=True)
            return
        place = f"[{self.report.answered + self.report.failed}/{len(self._open)}] {question.id}: "
        if isinstance(answer, HearthError):
            say(f"{place}failed: {answer}")
            return
        say(f"{place}{answer.cached_tokens} of {answer.prompt_tokens} prompt tokens cached, first "
            f"token after {ms_text(answer.finished.ttft_ms)}, {answer.finished.generated_tokens} "
            f"new tokens in {ms_text(answer.finished.total_ms)}")
        if self._answers is None:
            text = shown(answer.text) if sys.stdout.isatty() else answer.text
            print(f"-- {shown(question.id)} --\n{text}", flush=True)

    def print_report(self) -> None:
        report, total_ms = self.report, 1000 * (time.monotonic() - self._start)
        report.unanswered = len(self._open) - report.answered - report.failed
        print(json_line(report.json(total_ms)) if self._flags.json
              else report.text(total_ms).rstrip("\n"), flush=True)


class NotReached(Unavailable):
    """No worker listens at the address."""


def say(line: str) -> None:
    print(shown(line), file=sys.stderr, flush=True)


def run(parser: Parser, flags: argparse.Namespace) -> int:
    kind = next(kind for kind in ("text", "chat", "token_ids") if getattr(flags, kind) is not None)
    options, context = options_of(flags), read_context(kind, getattr(flags, kind))
    each = generate_request(inference_pb2.PromptInput(), options)
    try:
        questions = parse_questions(
            text_of(read_file(flags.questions), flags.questions),
            QUESTION_PLACE if kind == "chat" else flags.template, kind == "token_ids", each)
    except ValueError as error:
        raise ValueError(f"{flags.questions}: {error}") from None
    answers = None if flags.output is None else AnswerFile(
        flags.output, context.sha256, [getattr(flags, kind), flags.questions])
    asker = Asker(flags, answers, questions)
    failure: Optional[Exception] = None
    if not asker.is_done:
        try:
            asyncio.run(asker.ask(context, options))
        except (HearthError, OSError, ValueError) as error:
            failure = error
    asker.print_report()
    if failure is not None:
        raise failure
    return OK if asker.report.is_complete else FAILED


def main(words: Optional[Sequence[str]] = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        cast(Any, stream).reconfigure(encoding="utf-8", errors="replace")
    # SIGTERM is handled like Ctrl-C. Without a handler, process 1 of a container would ignore it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = Parser("hearth_cache.ask", "Answers many questions about one context.", EXAMPLES)
    flags = parse(parser, words)
    try:
        return run(parser, flags)
    except KeyboardInterrupt:
        say("hearth_cache.ask: interrupted; with --output, the same command continues")
        return INTERRUPTED
    except NotReached as error:
        parser.fail(error)
        return UNREACHABLE
    except BrokenPipeError:  # the program that read stdout has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (HearthError, OSError, ValueError) as error:
        return parser.fail(error)


if __name__ == "__main__":
    sys.exit(main())
