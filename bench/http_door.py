"""A worker's HTTP addresses under many connections: scrapes beside half requests, and open streams.

    .venv/bin/python bench/http_door.py MODEL_DIR scrapes [--seconds 60] [--half 64]
    .venv/bin/python bench/http_door.py MODEL_DIR streams [--streams 512]

scrapes: half requests are kept open at the metrics address, a new one for each that is closed,
while /metrics is asked once a second. Exits with 1 where an answer is missing. streams: so many
streamed completions are open at once, most of them waiting; printed are /health's median and worst,
the worker's threads and memory before and meanwhile. Exits with 1 where the median is not below
50 ms, or a stream takes more than 64 KiB.
"""

import argparse
import json
import pathlib
import selectors
import socket
import statistics
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from hearth_procs import Cluster  # noqa: E402  (path set above)


def connect(url):
    host, port = url.removeprefix("http://").rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=60)


def get(url):
    start = time.monotonic()
    with urllib.request.urlopen(url, timeout=20) as answer:
        answer.read()
    return (time.monotonic() - start) * 1e3


def scrapes(args, page):
    watched, answered, slowest = selectors.DefaultSelector(), 0, 0

    def half():
        made = connect(page)
        made.sendall(b"GET /metrics HTTP/1.1\r\nHost: loc")
        watched.register(made, selectors.EVENT_READ)

    for _ in range(args.half):
        half()
    closed, end = 0, time.monotonic() + args.seconds
    for second in range(args.seconds):
        try:
            slowest = max(slowest, get(page + "/metrics"))
            answered += 1
        except OSError as error:
            print("scrape", second, error)
        until = end - args.seconds + second + 1
        while (left := until - time.monotonic()) > 0:
            for key, _ in watched.select(left):
                watched.unregister(key.fileobj)
                key.fileobj.close()
                half()
                closed += 1
    print(f"{answered} of {args.seconds} scrapes answered beside {args.half} half requests "
          f"({closed} closed by the server), the slowest after {slowest:.1f} ms")
    return answered == args.seconds


def streams(args, http, worker):
    threads, memory = worker.status_field("Threads"), worker.status_field("VmRSS")
    body = json.dumps({"prompt": [2, 3, 4, 5, 6, 7, 8, 9], "stream": True, "ignore_eos": True,
                       "max_tokens": args.tokens})
    opened = []
    for _ in range(args.streams):
        made = connect(http)
        made.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                      f"application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}").encode())
        opened.append(made)
    waits = [get(http + "/health") for _ in range(100)]
    more_threads = worker.status_field("Threads") - threads
    more_kib = worker.status_field("VmRSS") - memory
    median = statistics.median(waits)
    print(f"{args.streams} streams open: /health median {median:.1f} ms, worst "
          f"{max(waits):.1f} ms; {more_threads} more threads, "
          f"{more_kib / args.streams:.0f} KiB a stream")
    for made in opened:
        made.close()
    return median < 50 and more_kib <= 64 * args.streams


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("what", choices=("scrapes", "streams"))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--half", type=int, default=64)
    parser.add_argument("--streams", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Cluster(ROOT / "build/bin", folder) as cluster:
        worker = cluster.worker(args.model, "none", "--max-queue", 2 * args.streams,
                                pages=("http", "metrics"))
        if args.what == "scrapes":
            return 0 if scrapes(args, worker.url("metrics")) else 1
        return 0 if streams(args, worker.url("http"), worker) else 1


if __name__ == "__main__":
    sys.exit(main())
