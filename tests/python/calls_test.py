"""Errors, retries, deadlines and identities of calls, against servers that answer as told."""

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


class ToldServer:
    """Answers calls with what it was told, in turn, and the last one again and again. Each is an
    exception-like (code, trailers) or a list of messages, after which the call may stay open."""

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
    def test_refused_calls_are_repeated_until_there_is_room(self):
        with ToldServer(BUSY, GONE, MODEL) as server, Worker(server.address) as worker:
            self.assertEqual(worker.model().device, "cpu")
            self.assertEqual(server.calls, 3)
            ids = {sent["hearth-request-id"] for sent in server.metadata}
            self.assertEqual(len(ids), 1, "one request has one id")

    def test_streams_are_repeated_before_their_first_message_only(self):
        with ToldServer(BUSY, [STARTED, FINISHED]) as server, Worker(server.address) as worker:
            answer = worker.generate([1, 2, 3])
            self.assertEqual((answer.prompt_tokens, answer.finish_reason), (3, "eos"))
            self.assertEqual(server.calls, 2)
            self.assertEqual(server.metadata[0]["hearth-request-id"], answer.request_id)

    def test_retries_have_an_end(self):
        with ToldServer(BUSY) as server, Worker(server.address, retries=2) as worker:
            with self.assertRaises(Busy) as caught:
                worker.model()
            self.assertEqual(server.calls, 3)
            self.assertEqual(caught.exception.retry_after_s, 0.01)
            self.assertIn(server.address, str(caught.exception))

    def test_questions_wait_for_room_and_not_for_a_server(self):
        busy = [BUSY] * 9 + [[inference_pb2.TokenizeResponse(token_ids=[2])]]
        with ToldServer(*busy, BUSY, GONE) as server, \
                Worker(server.address, retries=2) as worker:
            with self.assertRaises(Unavailable):
                list(worker.ask("a", ["b"]))
            self.assertEqual(server.calls, 9 + 1 + 1 + 3)

    def test_a_hint_past_the_deadline_ends_the_call_at_once(self):
        late = (grpc.StatusCode.RESOURCE_EXHAUSTED, (("retry-after-ms", "59000"),))
        with ToldServer(late) as server, Worker(server.address, deadline_s=30) as worker:
            with self.assertRaises(Busy):
                worker.model()
            self.assertEqual(server.calls, 1)

    def test_a_hint_that_is_no_duration_counts_as_none(self):
        for hint in ("soon", "-5", "9" * 400, "9" * 5000, "nan", ""):
            wrong = (grpc.StatusCode.RESOURCE_EXHAUSTED, (("retry-after-ms", hint),))
            with self.subTest(hint=hint[:9]), ToldServer(wrong) as server, \
                    Worker(server.address, retries=0) as worker:
                with self.assertRaises(Busy) as caught:
                    worker.model()
                self.assertEqual(caught.exception.retry_after_s, 1.0)

    def test_asyncio_repeats_calls_alike(self):
        async def ask(address):
            async with AsyncWorker(address) as worker:
                device = (await worker.model()).device
                return device, (await worker.generate([1, 2, 3])).prompt_tokens
        with ToldServer(BUSY, MODEL, GONE, [STARTED, FINISHED]) as server:
            self.assertEqual(asyncio.run(ask(server.address)), ("cpu", 3))
            self.assertEqual(server.calls, 4)


class Errors(unittest.TestCase):
    def test_a_refused_field_is_named_and_not_asked_for_again(self):
        with ToldServer(refusal_of("sampling.top_p")) as server, Worker(server.address) as worker:
            with self.assertRaises(InvalidRequest) as caught:
                worker.generate([1], top_p=3.0)
            self.assertEqual(caught.exception.field, "sampling.top_p")
            self.assertEqual(server.calls, 1)
            self.assertEqual(caught.exception.code, grpc.StatusCode.INVALID_ARGUMENT)

    def test_a_message_above_grpcs_limit_is_not_sent_again(self):
        with ToldServer(MODEL, options=[("grpc.max_receive_message_length", 1000)]) as server, \
                Worker(server.address) as worker:
            with self.assertRaisesRegex(InvalidRequest, "larger than max"):
                worker.tokenize("a" * 2000)

    def test_a_code_without_a_class_is_kept(self):
        with ToldServer((grpc.StatusCode.UNIMPLEMENTED, ())) as server, \
                Worker(server.address) as worker:
            with self.assertRaises(HearthError) as caught:
                worker.model()
            self.assertEqual(caught.exception.code, grpc.StatusCode.UNIMPLEMENTED)

    def test_details_that_cannot_be_read_name_no_field(self):
        garbled = status_pb2.Status(code=3, details=[any_pb2.Any(
            type_url="type.googleapis.com/google.rpc.BadRequest", value=b"\xff\xff")])
        for details in (b"\xff\xff\xff", b"", garbled.SerializeToString()):
            refusal = (grpc.StatusCode.INVALID_ARGUMENT, (("grpc-status-details-bin", details),))
            with self.subTest(details=details), ToldServer(refusal) as server, \
                    Worker(server.address) as worker:
                with self.assertRaises(InvalidRequest) as caught:
                    worker.generate([1])
                self.assertEqual(caught.exception.field, "")

    def test_a_sample_beyond_all_limits_is_refused(self):
        token = inference_pb2.GeneratedToken(text="a", sample=(1 << 32) - 1)
        with ToldServer([STARTED, inference_pb2.GenerateResponse(token=token)]) as server, \
                Worker(server.address) as worker:
            with self.assertRaisesRegex(DataLoss, "got 4294967295"):
                worker.generate([1])

    def test_a_tier_of_a_later_version_is_its_number(self):
        started = inference_pb2.GenerateResponse(started=inference_pb2.Started(source_tier=77))
        with ToldServer([started, FINISHED]) as server, Worker(server.address) as worker:
            self.assertEqual(worker.generate([1]).source_tier, "77")

    def test_a_call_ends_at_its_deadline(self):
        with ToldServer([STARTED, None]) as server, Worker(server.address) as worker:
            with self.assertRaises(DeadlineExceeded):
                worker.generate([1], deadline_s=0.2)

    def test_a_server_that_is_not_there_is_unavailable(self):
        with ToldServer(MODEL) as server:
            address = server.address
        with Worker(address, retries=1) as worker, self.assertRaises(Unavailable):
            worker.model()

    def test_closing_a_stream_cancels_its_call(self):
        token = inference_pb2.GenerateResponse(token=inference_pb2.GeneratedToken(text="a"))
        with ToldServer([STARTED, token, None]) as server, Worker(server.address) as worker:
            with worker.stream([1]) as stream:
                self.assertEqual(next(iter(stream)).text, "a")
            self.assertEqual(stream.answer.text, "a")

    def test_an_option_that_does_not_exist_is_refused(self):
        with Worker("127.0.0.1:1") as worker, self.assertRaisesRegex(TypeError, "top_q"):
            worker.generate([1], top_q=3)

    def test_options_are_fields_by_their_names(self):
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
    def test_tokens_are_sent_and_their_file_is_read_again(self):
        with tempfile.TemporaryDirectory() as folder, ToldServer(MODEL) as server:
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

    def test_a_token_has_visible_ascii_characters_alone(self):
        for token in ("caf\u00e9", "a b", "a\n", ""):
            with self.assertRaisesRegex(ValueError, "visible ASCII") as refused:
                Access(token=token).metadata("id")
            self.assertNotIn("caf", str(refused.exception))

    def test_a_token_does_not_cross_a_network_in_clear_text(self):
        for address in ("127.example.org:5", "10.0.0.1:50051"):
            with self.assertRaisesRegex(ValueError, "clear text"):
                Worker(address, access=Access(token="secret"))
        Worker("10.0.0.1:50051", access=Access(token="secret", plaintext_tokens=True)).close()

    def test_tls_checks_the_server_and_shows_a_certificate(self):
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
            with ToldServer(MODEL, credentials=credentials) as server:
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
