"""A chat client of OpenAI's API; its worker and store are restarted between the turns of the chat.

    .venv/bin/python bench/http_chat.py MODEL_DIR [--history 2048] [--turns 4]

The client sends no field about caching. Printed for each turn: tokens of its prompt, its cached
tokens, its time to first token, and the time to first token of the same prompt at a worker without
a store. Exits with 1 if a whole chunk of an earlier turn was computed again.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from hearth_procs import Cluster  # noqa: E402  (path set above)

CHUNK = 128
WORDS = "the keeper of the light climbs the stairs before the evening comes and trims the lamp "


def ask(url, messages, timeout_s=600, token="", **fields):
    """Streams a chat. Returns (text, seconds to the first text, usage). `fields`: additional fields
    of the request."""
    body = {"messages": messages, "max_tokens": 24, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, **fields}
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = "Bearer " + token
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     headers)
    text, first, usage = "", None, None
    start = time.monotonic()
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event["usage"] or usage
            for choice in event["choices"]:
                if choice["delta"].get("content"):
                    first = first or time.monotonic() - start
                    text += choice["delta"]["content"]
    return text, first, usage


class Servers:
    def __init__(self, model, folder, name, with_store=True):
        self.cluster = Cluster(ROOT / "build/bin", folder / name)
        store = self.cluster.store(folder / "data").address if with_store else "none"
        self.url = self.cluster.worker(model, store, pages=("http",)).url("http")

    def __enter__(self):
        return self.url

    def __exit__(self, *unused):
        self.cluster.__exit__()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--history", type=int, default=2048)
    parser.add_argument("--turns", type=int, default=4)
    args = parser.parse_args()
    wrong = False
    with tempfile.TemporaryDirectory() as name:
        folder, messages, before = pathlib.Path(name), [], 0
        for turn in range(args.turns):
            words = args.history // 16 if turn == 0 else 1
            messages.append({"role": "user", "content": f"{turn}. " + WORDS * words})
            with Servers(args.model, folder, f"cold{turn}", with_store=False) as url:
                _, cold, _ = ask(url, messages)
            with Servers(args.model, folder, f"turn{turn}") as url:
                text, first, usage = ask(url, messages)
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            print(f"turn {turn}: {usage['prompt_tokens']} tokens, {cached} cached; first token "
                  f"after {first * 1e3:.0f} ms, cold {cold * 1e3:.0f} ms: {cold / first:.1f} x")
            wrong |= cached < before // CHUNK * CHUNK
            before = usage["prompt_tokens"]
            messages.append({"role": "assistant", "content": text})
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
