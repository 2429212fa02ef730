"""A worker with a tokenizer and a store that serves OpenAI's API, for tests of HTTP."""

import json
import shutil
import socket
import time
import urllib.request

from system_support import LONG_S, ROOT, SystemTest

TOKENIZER = ROOT / "tests" / "data" / "tiny_tokenizer" / "tokenizer.model"
VOCABULARY = 700  # the tokenizer's
MODEL = "lighthouse"


class HttpWorker(SystemTest):
    CONTEXT_TOKENS = 256

    def setUp(self):
        super().setUp()
        self.store = self.cluster.store(self.folder / "data")
        model = self.model(context_tokens=self.CONTEXT_TOKENS, vocabulary=VOCABULARY)
        shutil.copy(TOKENIZER, model)
        self.node = self.worker(model, self.store.address, "--http-model", MODEL, "--max-queue",
                                "1024", *self.flags(), pool_bytes=16 << 20,
                                pages=("http", "metrics"))
        self.url = self.node.url("http")

    def flags(self):
        """Returns additional flags of the worker."""
        return ()

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, data=json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=LONG_S) as answer:
            return json.loads(answer.read())

    def metric(self, name):
        """Returns the sum of a metric's values over all labels."""
        url = self.node.url("metrics") + "/metrics"
        with urllib.request.urlopen(url, timeout=LONG_S) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines
                   if line.split("{")[0].split(" ")[0] == name)

    def wait_for_metric(self, name, value):
        """Waits until a metric has this value: the worker counts a request after its answer."""
        end = time.monotonic() + LONG_S
        while (now := self.metric(name)) != value:
            self.assertLess(time.monotonic(), end, f"{name} is {now} instead of {value}")

    def connect(self):
        host, port = self.url.removeprefix("http://").rsplit(":", 1)
        made = socket.create_connection((host, int(port)), timeout=LONG_S)
        self.addCleanup(made.close)
        return made


def request_bytes(path, body):
    text = json.dumps(body)
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
             f"Content-Length: {len(text)}", "", text]
    return "\r\n".join(lines).encode()


__all__ = ["HttpWorker", "MODEL", "TOKENIZER", "VOCABULARY", "request_bytes"]
