"""A worker's OpenAI API: metrics of requests, clients that hang up, queued and TLS streams, and
hostile requests.

Run as: python http_door_test.py BIN_DIR WRITE_CHECKPOINT [unittest arguments]. HEARTH_DOOR_SCALE
multiplies the numbers of requests: 50 makes 10,000 hang-ups, as many hostile requests, and 512
streams.
"""

import json
import os
import random
import select
import socket
import ssl
import time
import urllib.request

import system_support
from hearth_procs import make_certificate
from http_worker import VOCABULARY, HttpWorker, request_bytes
from system_support import LONG_S

SCALE = int(os.environ.get("HEARTH_DOOR_SCALE", "1"))
SEED = int(os.environ.get("HEARTH_DOOR_SEED", "1"))
MIB = 1 << 20
COMPLETIONS = "/v1/completions"
WORDS = "the keeper of the light climbs stairs before evening comes and trims lamp wind sea".split()


def texts(source, count):
    """Returns prompts, many of which share a beginning."""
    made = [" ".join(source.choices(WORDS, k=20)) for _ in range(4)]
    while len(made) < count:
        begin = source.choice(made).split()[:source.randrange(1, 30)]
        made.append(" ".join(begin + source.choices(WORDS, k=source.randrange(1, 20))))
    return made


def random_request(source, prompt):
    body = {"prompt": prompt, "max_tokens": source.randrange(1, 12), "ignore_eos": True,
            "seed": source.randrange(1 << 40), "temperature": source.choice((0, 0.7, 1.3))}
    for name, value in (("top_p", 0.9), ("top_k", 20), ("min_p", 0.02),
                        ("repetition_penalty", 1.3), ("presence_penalty", 0.5),
                        ("frequency_penalty", 0.25)):
        if source.random() < 0.3:
            body[name] = value
    return body


class Counts(HttpWorker):

    def test_metrics_count_random_requests(self):
        source = random.Random(SEED)
        cached = written = 0
        bodies = []
        for prompt in texts(source, 40 * SCALE):
            bodies.append(random_request(source, prompt))
            answer = self.post(COMPLETIONS, bodies[-1])
            bodies[-1]["answer"] = answer["choices"][0]["text"]
            details = answer["usage"]["prompt_tokens_details"]
            cached += details["cached_tokens"]
            written += details["cache_write_tokens"]
        self.assertGreater(cached, 0)
        self.assertGreater(written, 0)
        self.wait_for_metric("hearth_worker_cache_write_tokens_total", written)
        self.wait_for_metric("hearth_worker_cached_tokens_total", cached)
        for body in bodies[::10]:
            flags = [f"--{name.replace('_', '-')}={body[name]}" for name in
                     ("seed", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
                      "presence_penalty", "frequency_penalty") if name in body]
            same = self.cluster.ctl("generate", "--worker", self.node.address, "--wait",
                                    LONG_S, "--prompt", body["prompt"], "--max-new-tokens",
                                    body["max_tokens"], "--ignore-eos", *flags)
            self.assertEqual(same["text"], body["answer"], body)


def open_files(process):
    return len(os.listdir(f"/proc/{process.popen.pid}/fd"))


class HangUps(HttpWorker):
    CONTEXT_TOKENS = 1024

    def wait_idle(self, files, cancelled_least):
        """Waits until at most `files` files are open, and all requests of the engine have ended, at
        least `cancelled_least` of them cancelled."""
        end = time.monotonic() + LONG_S
        while True:
            open_now = open_files(self.node)
            begun, finished, cancelled = (
                self.metric(f"hearth_worker_requests{name}_total")
                for name in ("", "_finished", "_cancelled"))
            if (open_now <= files and begun == finished + cancelled and
                    cancelled >= cancelled_least):
                return
            self.assertLess(time.monotonic(), end,
                            f"{open_now} files open, {files} before; of {begun} requests "
                            f"{finished} finished, {cancelled} were cancelled")

    def hang_up(self, source, clients):
        """Starts this many clients; each disconnects at some point of its request."""
        prompt = " ".join(source.choices(WORDS, k=150))
        callers = []
        for _ in range(clients):
            streams = source.random() < 0.5
            body = {"prompt": f"{source.randrange(1 << 30)} {prompt}", "max_tokens": 600,
                    "ignore_eos": True, "stream": streams}
            caller = self.connect()
            caller.sendall(request_bytes(COMPLETIONS, body))
            callers.append((caller, streams))
        # The first requests decode, the next are in prefill, the rest are queued.
        for caller, streams in callers:
            if streams and source.random() < 0.2:
                caller.recv(64)
        source.shuffle(callers)
        for caller, _ in callers:
            caller.close()

    def test_hang_ups_leak_nothing(self):
        source = random.Random(SEED)
        self.post(COMPLETIONS, {"prompt": "the"})
        files = open_files(self.node) + 8  # 8 more files for the connections that read /metrics
        self.hang_up(source, 32)
        self.wait_idle(files, 1)
        size, threads = self.node.status_field("VmRSS"), self.node.status_field("Threads")
        rounds = max(2, 200 * SCALE // 32)
        for _ in range(rounds):
            self.hang_up(source, 32)
        self.wait_idle(files, 16 * rounds)
        self.assertLessEqual(self.node.status_field("Threads"), threads + 8)
        self.assertLessEqual(self.node.status_field("VmRSS"), size + 64 * 1024)
        self.assertEqual(len(self.post(COMPLETIONS, {"prompt": "the"})["choices"]), 1)


class QueuedStreams(HttpWorker):
    CONTEXT_TOKENS = 32768
    COUNT = 64

    def flags(self):
        return "--max-running", "1"

    def test_queued_stream_gets_headers_early(self):
        """A long request occupies the only place for running requests, so the streams are queued.
        Their headers arrive before the long request ends."""
        source = random.Random(SEED)
        first = self.connect()
        first.sendall(request_bytes(COMPLETIONS, {
            "prompt": [source.randrange(3, VOCABULARY) for _ in range(12000)],
            "max_tokens": 20000, "ignore_eos": True, "stream": True}))
        self.assertTrue(first.recv(64).startswith(b"HTTP/1.1 200"))
        asked = {}  # {connection: received bytes}
        for _ in range(self.COUNT):
            caller = self.connect()
            asked[caller] = b""
            caller.sendall(request_bytes(COMPLETIONS, {"prompt": "lamp", "stream": True}))
        while asked:
            ready = select.select(list(asked), [], [], LONG_S)[0]
            self.assertTrue(ready, f"{len(asked)} streams get no headers")
            for caller in ready:
                received = caller.recv(1 << 16)
                self.assertTrue(received, f"a stream ended after {asked[caller]}")
                asked[caller] += received
                self.assertNotIn(b"data: ", asked[caller])
                if b"\r\n: waiting\n\n" in asked[caller]:
                    self.assertTrue(asked.pop(caller).startswith(b"HTTP/1.1 200"))
        self.assertEqual(self.metric("hearth_worker_requests_finished_total"), 0)


class StreamsByTls(HttpWorker):

    def flags(self):
        certificate, key = make_certificate(self.folder, "worker")
        self.tls = ssl.create_default_context(cafile=certificate)
        return "--tls-cert", certificate, "--tls-key", key

    def connect(self):
        made = self.tls.wrap_socket(super().connect(), server_hostname="127.0.0.1")
        self.addCleanup(made.close)
        return made

    def health(self):
        url = self.url.replace("http:", "https:") + "/health"
        with urllib.request.urlopen(url, timeout=LONG_S, context=self.tls) as answer:
            return json.loads(answer.read())["status"]

    def test_many_tls_streams_all_finish(self):
        self.assertEqual(self.health(), "ok")
        size, threads = self.node.status_field("VmRSS"), self.node.status_field("Threads")
        body = {"prompt": "the keeper", "max_tokens": 100, "ignore_eos": True, "stream": True,
                "temperature": 0}
        callers = []
        for _ in range(min(512, 32 * SCALE)):
            callers.append(self.connect())
            # Sends the request at once: the server closes a connection that has sent none after ten
            # seconds.
            callers[-1].sendall(request_bytes(COMPLETIONS, body))
        self.assertEqual(self.health(), "ok")
        self.assertLessEqual(self.node.status_field("Threads"), threads + 8)
        # Allows 128 KiB for each connection, of which Asio's TLS buffers need 68 KiB.
        self.assertLessEqual(self.node.status_field("VmRSS"), size + 128 * len(callers) + 16 * 1024)
        said = set(map(self.streamed, callers))
        self.assertEqual(len(said), 1)
        self.assertNotIn("", said)

    def streamed(self, caller):
        """Reads a stream to its end; returns its text."""
        caller.settimeout(LONG_S)
        text = ""
        with caller.makefile("rb") as answer:
            for line in answer:
                if line == b"data: [DONE]\n":
                    return text
                if line.startswith(b"data: "):
                    text += json.loads(line[6:])["choices"][0]["text"]
        raise AssertionError(f"a stream ended after {text!r}")


def hostile(source):
    """Returns (kind, bytes of a random hostile request, expected statuses). No status: the request
    is incomplete."""
    good = request_bytes(COMPLETIONS, {"prompt": "a", "max_tokens": 1})
    junk = bytes(source.randrange(256) for _ in range(source.randrange(1, 200)))
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    text = '{"prompt": "a", "max_tokens": 1}'

    def with_head(more, body=text):
        return (head + more + "\r\n\r\n" + body).encode()

    kinds = {
        "junk": (junk + b"\r\n\r\n", [400]),
        "half": (good[:source.randrange(1, len(good))], []),
        "no colon": (b"GET /health HTTP/1.1\r\nHost\r\n\r\n", [400]),
        "nul": (b"GET /health HTTP/1.1\r\nHost: local\0host\r\n\r\n", [400]),
        "two lengths": (with_head("Content-Length: 5\r\nContent-Length: 32"), [400]),
        "smuggled": (with_head("Content-Length: 5\r\nTransfer-Encoding: chunked",
                               "0\r\n\r\nGET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"), [400]),
        "length": (with_head("Content-Length: " + source.choice(
            ("-1", "+5", "0x10", "99999999999999999999", "5 5", "a"))), [400]),
        "chunks": (with_head("Transfer-Encoding: chunked",
                             source.choice(("xyz\r\n", "-1\r\n", "fffffffffffffffff\r\n"))), [400]),
        "huge headers": (with_head(f"X: {'a' * source.randrange(17000, 40000)}"), [431]),
        "many headers": (with_head("A: b\r\n" * source.randrange(4000, 8000) + "A: b"), [431]),
        "huge body": (with_head(f"Content-Length: {source.randrange(4 * MIB, 1 << 40)}"), [413]),
        "no json": (request_bytes(COMPLETIONS, source.choice(([], "a", 3, None))), [400]),
        "deep": (with_head("Content-Length: 100000", "[" * 100000), [400]),
        "wrong types": (request_bytes(COMPLETIONS, {
            "prompt": "a", "max_tokens": 1,
            source.choice(("prompt", "n", "stop", "seed", "logprobs", "logit_bias")):
            source.choice(([{}], {"a": []}, -1.5, 1e300))}), [400]),
        "no utf-8": (with_head("Content-Length: 15", "") +
                     b'{"prompt":"\xff\xfe"}', [400]),
        "method": (f"{source.choice(('PUT', 'PATCH', 'TRACE', 'X'))} {COMPLETIONS} HTTP/1.1\r\n"
                   "Host: localhost\r\n\r\n".encode(), [405]),
        "path": (f"GET /{'../' * source.randrange(9)}etc/passwd?{'a' * 99} HTTP/1.1\r\n"
                 "Host: localhost\r\n\r\n".encode(), [404]),
        "pipelined": (good + request_bytes("/v1/nothing", {}) + good, [200, 404, 200]),
    }
    name = source.choice(sorted(kinds))
    return name, *kinds[name]


def status_of(answer):
    """Reads the next answer; returns its status, or None if there is none."""
    line = answer.readline()
    if not line:
        return None
    length = 0
    while (header := answer.readline().strip()) != b"":
        if header.lower().startswith(b"content-length:"):
            length = int(header.split(b":")[1])
    answer.read(length)
    return int(line.split(b" ")[1])


class Hostile(HttpWorker):

    def statuses(self, sent, count):
        """Sends a request. Returns (`count` statuses, bytes received after the client has closed
        its sending side)."""
        with self.connect() as caller, caller.makefile("rb") as answer:
            caller.sendall(sent)
            got = [status_of(answer) for _ in range(count)]
            caller.shutdown(socket.SHUT_WR)
            return got, answer.read()

    def test_hostile_requests_get_expected_status(self):
        source = random.Random(SEED)
        self.post(COMPLETIONS, {"prompt": "the keeper"})
        before = self.node.status_field("VmRSS")
        for number in range(200 * SCALE):
            name, sent, wanted = hostile(source)
            self.assertEqual(self.statuses(sent, len(wanted)), (wanted, b""),
                             f"{name}, request {number} of seed {SEED}: {sent[:200]}")
            if number % 50 == 0:
                self.assertEqual(len(self.post(COMPLETIONS, {"prompt": "a"})["choices"]), 1)
        self.assertLessEqual(self.node.status_field("VmHWM"), before + 64 * 1024 + 3 * 1024)


if __name__ == "__main__":
    system_support.main()
