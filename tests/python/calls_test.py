"""Errors, retries, deadlines and identities of calls, against servers with scripted answers."""

import asyncio
import concurrent.futures
import pathlib
import subprocess
import tempfile
import threading
import unittest

import python_support

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from hearth_cache import (
    Access, AsyncWorker, Busy, DataLoss, DeadlineExceeded, HearthError, InvalidRequest, Unavailable,
    Worker)
from hearth_cache.prompts import generate_request
from hearth_cache.v1 import inference_pb2

LONG_S = 60


class ScriptedServer:
    """Answers each call with the next scripted answer, and further calls with the last answer. An
    answer is an error (code, trailers) or a list of messages; None at the end of the list keeps
    the call open."""

    def __init__(self, *told, credentials=None, options=()):
        self.told, self.calls, self.metadata = list(told), 0, []
        self.release = threading.Event()
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), options=options)
        self._server.add_generic_rpc_handlers([self])
        self.port = self._server.add_insecure_port("127.0.0.1:0") if credentials is None \
            else self._server.add_secure_port("127.0.0.1:0", credentials)
        self._server.start()
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.release.set()
        self._server.stop(None).wait()

    def service(self, details):
        if details.method.endswith(("GetModel", "Tokenize")):
            return grpc.unary_unary_rpc_method_handler(lambda request, context: next(
                iter(self.answer(context))), None, lambda message: message.SerializeToString())
        return grpc.unary_stream_rpc_method_handler(
            lambda request, context: self.answer(context), None,
            lambda message: message.SerializeToString())

    def answer(self, context):
        told = self.told[min(self.calls, len(self.told) - 1)]
        self.calls += 1
        self.metadata.append(dict(context.invocation_metadata()))
        if isinstance(told, list):
            yield from (message for message in told if message is not None)
            if told[-1:] == [None]:
                self.release.wait(LONG_S)
            return
        code, trailers = told
        context.set_trailing_metadata(trailers)
        context.abort(code, "as told")


BUSY = (grpc.StatusCode.RESOURCE_EXHAUSTED, (("retry-after-ms", "10"),))
GONE = (grpc.StatusCode.UNAVAILABLE, ())
MODEL = [inference_pb2.GetModelResponse(device="cpu")]
STARTED = inference_pb2.GenerateResponse(started=inference_pb2.Started(prompt_tokens=3))
FINISHED = inference_pb2.GenerateResponse(finished=inference_pb2.Finished(
    samples=[inference_pb2.SampleEnd(reason=inference_pb2.FINISH_REASON_EOS)]))


def refusal_of(field):
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.BadRequest(field_violations=[
        error_details_pb2.BadRequest.FieldViolation(field=field, description="too high")]))
    status = status_pb2.Status(code=3, message="as told", details=[detail])
    return (grpc.StatusCode.INVALID_ARGUMENT,
            (("grpc-status-details-bin", status.SerializeToString()),))


class Retries(unittest.TestCase):
    def test_busy_call_is_retried_until_accepted(self):
        with ScriptedServer(BUSY, GONE, MODEL) as server, Worker(server.address) as worker:
            self.assertEqual(worker.model().device, "cpu")
            self.assertEqual(server.calls, 3)
            ids = {sent["hearth-request-id"] for sent in server.metadata}
            self.assertEqual(len(ids), 1, "one request has one id")

    def test_stream_is_retried_before_first_message(self):
        with ScriptedServer(BUSY, [STARTED, FINISHED]) as server, Worker(server.address) as worker:
            answer = worker.generate([1, 2, 3])
            self.assertEqual((answer.prompt_tokens, answer.finish_reason), (3, "eos"))
            self.assertEqual(server.calls, 2)
            self.assertEqual(server.metadata[0]["hearth-request-id"], answer.request_id)

    def test_retries_end_at_limit(self):
        with ScriptedServer(BUSY) as server, Worker(server.address, retries=2) as worker:
            with self.assertRaises(Busy) as caught:
                worker.model()
            self.assertEqual(server.calls, 3)
            self.assertEqual(caught.exception.retry_after_s, 0.01)
            self.assertIn(server.address, str(caught.exception))

    def test_ask_limits_retries_only_when_unavailable(self):
        busy = [BUSY] * 9 + [[inference_pb2.TokenizeResponse(token_ids=[2])]]
        with ScriptedServer(*busy, BUSY, GONE) as server, \
                Worker(server.address, retries=2) as worker:
            with self.assertRaises(Unavailable):
                list(worker.ask("a", ["b"]))
            self.assertEqual(server.calls, 9 + 1 + 1 + 3)

    def test_retry_hint_past_deadline_ends_call(self):
        late = (grpc.StatusCode.RESOURCE_EXHAUSTED, (("retry-after-ms", "59000"),))
        with ScriptedServer(late) as server, Worker(server.address, deadline_s=30) as worker:
            with self.assertRaises(Busy):
                worker.model()
            self.assertEqual(server.calls, 1)

    def test_invalid_retry_hint_is_ignored(self):
        for hint in ("soon", "-5", "9" * 400, "9" * 5000, "nan", ""):
            wrong = (grpc.StatusCode.RESOURCE_EXHAUSTED, (("retry-after-ms", hint),))
            with self.subTest(hint=hint[:9]), ScriptedServer(wrong) as server, \
                    Worker(server.address, retries=0) as worker:
                with self.assertRaises(Busy) as caught:
                    worker.model()
                self.assertEqual(caught.exception.retry_after_s, 1.0)

    def test_async_worker_retries_too(self):
        async def ask(address):
            async with AsyncWorker(address) as worker:
                device = (await worker.model()).device
                return device, (await worker.generate([1, 2, 3])).prompt_tokens
        with ScriptedServer(BUSY, MODEL, GONE, [STARTED, FINISHED]) as server:
            self.assertEqual(asyncio.run(ask(server.address)), ("cpu", 3))
            self.assertEqual(server.calls, 4)


class Errors(unittest.TestCase):
    def test_invalid_field_is_named_without_retry(self):
        with ScriptedServer(refusal_of("sampling.top_p")) as server, \
                Worker(server.address) as worker:
            with self.assertRaises(InvalidRequest) as caught:
                worker.generate([1], top_p=3.0)
            self.assertEqual(caught.exception.field, "sampling.top_p")
            self.assertEqual(server.calls, 1)
            self.assertEqual(caught.exception.code, grpc.StatusCode.INVALID_ARGUMENT)

    def test_oversized_message_is_not_retried(self):
        with ScriptedServer(MODEL, options=[("grpc.max_receive_message_length", 1000)]) as server, \
                Worker(server.address) as worker:
            with self.assertRaisesRegex(InvalidRequest, "larger than max"):
                worker.tokenize("a" * 2000)

    def test_unmapped_status_code_is_kept(self):
        with ScriptedServer((grpc.StatusCode.UNIMPLEMENTED, ())) as server, \
                Worker(server.address) as worker:
            with self.assertRaises(HearthError) as caught:
                worker.model()
            self.assertEqual(caught.exception.code, grpc.StatusCode.UNIMPLEMENTED)

    def test_unreadable_details_leave_field_empty(self):
        garbled = status_pb2.Status(code=3, details=[any_pb2.Any(
            type_url="type.googleapis.com/google.rpc.BadRequest", value=b"\xff\xff")])
        for details in (b"\xff\xff\xff", b"", garbled.SerializeToString()):
            refusal = (grpc.StatusCode.INVALID_ARGUMENT, (("grpc-status-details-bin", details),))
            with self.subTest(details=details), ScriptedServer(refusal) as server, \
                    Worker(server.address) as worker:
                with self.assertRaises(InvalidRequest) as caught:
                    worker.generate([1])
                self.assertEqual(caught.exception.field, "")

    def test_huge_sample_index_is_data_loss(self):
        token = inference_pb2.GeneratedToken(text="a", sample=(1 << 32) - 1)
        with ScriptedServer([STARTED, inference_pb2.GenerateResponse(token=token)]) as server, \
                Worker(server.address) as worker:
            with self.assertRaisesRegex(DataLoss, "got 4294967295"):
                worker.generate([1])

    def test_unknown_tier_is_shown_as_number(self):
        started = inference_pb2.GenerateResponse(started=inference_pb2.Started(source_tier=77))
        with ScriptedServer([started, FINISHED]) as server, Worker(server.address) as worker:
            self.assertEqual(worker.generate([1]).source_tier, "77")

    def test_call_ends_at_deadline(self):
        with ScriptedServer([STARTED, None]) as server, Worker(server.address) as worker:
            with self.assertRaises(DeadlineExceeded):
                worker.generate([1], deadline_s=0.2)

    def test_missing_server_is_unavailable(self):
        with ScriptedServer(MODEL) as server:
            address = server.address
        with Worker(address, retries=1) as worker, self.assertRaises(Unavailable):
            worker.model()

    def test_closed_stream_cancels_call(self):
        token = inference_pb2.GenerateResponse(token=inference_pb2.GeneratedToken(text="a"))
        with ScriptedServer([STARTED, token, None]) as server, Worker(server.address) as worker:
            with worker.stream([1]) as stream:
                self.assertEqual(next(iter(stream)).text, "a")
            self.assertEqual(stream.answer.text, "a")

    def test_unknown_option_is_refused(self):
        with Worker("127.0.0.1:1") as worker, self.assertRaisesRegex(TypeError, "top_q"):
            worker.generate([1], top_q=3)

    def test_options_set_request_fields(self):
        made = generate_request(inference_pb2.PromptInput(), {
            "stop": "end", "cache": "read", "keep_s": 9, "logprobs": 2, "logit_bias": {5: 1.0},
            "top_k": 3, "breakpoints": [1]})
        self.assertEqual(made, inference_pb2.GenerateRequest(
            prompt=inference_pb2.PromptInput(), max_new_tokens=256, fits_context=True,
            stop=["end"], cache=inference_pb2.CACHE_MODE_READ, keep_s=9,
            sampling=inference_pb2.SamplingParams(
                report_logprobs=True, logprobs=2, logit_bias={5: 1.0}, top_k=3)))
        plain = generate_request(inference_pb2.PromptInput(), {"max_new_tokens": 3})
        self.assertFalse(plain.fits_context or plain.HasField("sampling"))


class Identities(unittest.TestCase):
    def test_token_file_is_reread_each_call(self):
        with tempfile.TemporaryDirectory() as folder, ScriptedServer(MODEL) as server:
            file = pathlib.Path(folder, "token")
            file.write_text("first\n")
            with Worker(server.address, access=Access(token_file=file)) as worker:
                worker.model()
                file.write_text("second\n")
                worker.model()
            with Worker(server.address, access=Access(token="third")) as worker:
                worker.model()
            self.assertEqual([sent["authorization"] for sent in server.metadata],
                             ["Bearer first", "Bearer second", "Bearer third"])

    def test_token_must_be_visible_ascii(self):
        for token in ("caf\u00e9", "a b", "a\n", ""):
            with self.assertRaisesRegex(ValueError, "visible ASCII") as refused:
                Access(token=token).metadata("id")
            self.assertNotIn("caf", str(refused.exception))

    def test_token_without_tls_is_refused(self):
        for address in ("127.example.org:5", "10.0.0.1:50051"):
            with self.assertRaisesRegex(ValueError, "clear text"):
                Worker(address, access=Access(token="secret"))
        Worker("10.0.0.1:50051", access=Access(token="secret", plaintext_tokens=True)).close()

    def test_mutual_tls_verifies_both_sides(self):
        with tempfile.TemporaryDirectory() as folder:
            access = pathlib.Path(folder)
            for name in ("server", "other"):
                subprocess.run(
                    ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                     "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key", "-out",
                     f"{name}.pem", "-subj", f"/CN={name}", "-addext",
                     "subjectAltName=IP:127.0.0.1"], cwd=access, check=True, capture_output=True)
            pair = [((access / "server.key").read_bytes(), (access / "server.pem").read_bytes())]
            credentials = grpc.ssl_server_credentials(
                pair, (access / "other.pem").read_bytes(), require_client_auth=True)
            with ScriptedServer(MODEL, credentials=credentials) as server:
                known = Access(tls_ca=access / "server.pem", tls_cert=access / "other.pem",
                               tls_key=access / "other.key")
                with Worker(server.address, access=known) as worker:
                    self.assertEqual(worker.model().device, "cpu")
                stranger = Access(tls_ca=access / "other.pem")
                with Worker(server.address, access=stranger, retries=0) as worker:
                    with self.assertRaises(Unavailable):
                        worker.model()


if __name__ == "__main__":
    python_support.main()
