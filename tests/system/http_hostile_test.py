"""Sends the hostile HTTP requests of tests/data/hostile_http, one at a time, to a worker without and
with identities: each must get the listed status, and the worker must continue to serve.

Run as: python http_hostile_test.py BIN_DIR WRITE_CHECKPOINT [unittest arguments].
"""

import hashlib
import json
import socket
import urllib.request

import psutil
import system_support
from http_worker import HttpWorker
from system_support import LONG_S, ROOT

FOLDER = ROOT / "tests" / "data" / "hostile_http"
TOKEN = "token-of-the-test"
ANSWER_BYTES_MAX = 1 << 20


def texts_of(parts):
    """Returns the bytes of a list of [text, times]; "%d" in a text is the repetition's number."""
    made = []
    for text, *times in parts:
        count = times[0] if times else 1
        made += [text % number for number in range(count)] if "%d" in text else [text * count]
    return "".join(made).encode("latin-1")


def bytes_of(case):
    if "file" in case:
        return (FOLDER / case["file"]).read_bytes()
    if "headers" in case:
        head = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
        return head + texts_of(case["headers"]) + b"\r\n"
    if "target" in case:
        return b"GET " + texts_of(case["target"]) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    body = texts_of(case.get("body") or case["chunked"])
    length = f"Content-Length: {len(body)}" if "body" in case else "Transfer-Encoding: chunked"
    return "\r\n".join([f"POST {case['path']} HTTP/1.1", "Host: localhost",
                        "Content-Type: application/json", length, "", ""]).encode() + body


def with_token(request, token):
    """Returns the request with a token after its first line; None if it has no CRLF."""
    begin, found, end = request.partition(b"\r\n")
    return begin + found + f"Authorization: Bearer {token}\r\n".encode() + end if found else None


def answer_to(address, request, half_closes):
    """Sends a request; returns the answer, or b"" if the connection was closed."""
    got = b""
    with socket.create_connection(address, timeout=LONG_S) as connection:
        try:
            connection.sendall(request)
            if half_closes:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the server refused the request before it was complete; it may have answered
        try:
            while not is_whole(got) and (piece := connection.recv(1 << 16)):
                got += piece
        except ConnectionResetError:
            pass
    return got


def without_interim(got):
    """Returns the answer without a leading 100 (Continue), with which the server tests whether a
    half-closed client is still connected."""
    return got.split(b"\r\n\r\n", 1)[-1] if got.startswith(b"HTTP/1.1 100 ") else got


def is_whole(got):
    head, found, body = without_interim(got).partition(b"\r\n\r\n")
    if not found:
        return len(got) > ANSWER_BYTES_MAX
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
    if b"content-length" not in fields:
        return len(body) > ANSWER_BYTES_MAX or body.endswith(b"0\r\n\r\n")
    return len(body) >= int(fields[b"content-length"])


class Hostile(HttpWorker):
    def check_all(self, transform, expected):
        """Sends each request, changed by `transform` (None: skip). `expected`: function from a case
        to its status."""
        wrong = []
        for case in json.loads((FOLDER / "index.json").read_text()):
            request = transform(case, bytes_of(case))
            if request is None:
                continue
            problem = self.problem_of(case, request, expected(case))
            if problem:
                wrong.append(f"{case.get('file') or case['name']} ({case['why']}): {problem}")
            if not self.is_healthy():
                self.fail("\n".join([*wrong, "the worker does not answer /health any more"]))
        self.assertFalse(wrong, "\n".join(wrong))

    def problem_of(self, case, request, expected):
        host, port = self.node.url(case.get("page", "http")).removeprefix("http://").rsplit(":", 1)
        begin = self.processor_s()
        try:
            answer = answer_to((host, int(port)), request, case.get("half_closes", False))
        except OSError as error:
            return f"no answer: {error}"
        took_s = self.processor_s() - begin
        words = without_interim(answer).split(b"\r\n", 1)[0].split(b" ")
        status = int(words[1]) if len(words) > 1 and words[1].isdigit() else None
        if status != expected:
            return f"status {status}, not {expected}: {answer[:300]!r}"
        if len(answer) > case.get("answer_bytes", ANSWER_BYTES_MAX):
            return f"an answer of {len(answer)} bytes"
        if took_s > case.get("seconds", LONG_S):
            return f"it took {took_s:.1f} s of processor time"
        return None

    def processor_s(self):
        """Returns the processor time of the worker: the elapsed time depends on other processes."""
        spent = psutil.Process(self.node.popen.pid).cpu_times()
        return spent.user + spent.system

    def is_healthy(self):
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=LONG_S) as answer:
                return answer.status == 200
        except OSError:
            return False


class WithoutIdentities(Hostile):
    def test_listed_requests_get_listed_status(self):
        self.check_all(lambda case, request: request, lambda case: case["status"])


class WithIdentities(Hostile):
    def flags(self):
        path = self.folder / "callers.json"
        digest = hashlib.sha256(TOKEN.encode()).hexdigest()
        path.write_text(json.dumps({"identities": [
            {"name": "caller", "role": "tenant", "token_sha256": digest}]}))
        return "--identities-file", path

    def test_requests_with_token_get_listed_status(self):
        def transform(case, request):
            has_token = b"Authorization" in request or b"X-Api-Key" in request
            return None if has_token or b"HTTP/" not in request else with_token(request, TOKEN)
        self.check_all(transform, lambda case: case["status"])

    def test_requests_without_token_are_refused(self):
        self.check_all(lambda case, request: request, lambda case: case.get("unknown", 401))


if __name__ == "__main__":
    system_support.main()
