"""A worker's HTTP addresses under many connections: half requests, open streams, hang-ups.

    .venv/bin/python bench/http_door.py MODEL_DIR scrapes [--seconds 60] [--half 64]
    .venv/bin/python bench/http_door.py MODEL_DIR streams [--streams 512] [--tls]
    .venv/bin/python bench/http_door.py MODEL_DIR hangups [--streams 32] [--rounds 5]

scrapes: keeps --half unfinished requests open at the metrics address, while it requests /metrics
once a second. Exits with 1 if an answer is missing.
streams: opens --streams streamed completions at once (--tls: by TLS), most of them queued. Prints
/health's median and worst, and the worker's threads and memory before and during the test. Exits
with 1 if the median is not below 50 ms, or a stream takes more than 64 KiB.
hangups: --streams callers, streaming or not, hang up at once while their prompts are computed,
their answers decoded, or they are queued. Prints the model's steps from just before the hang-up
until it is idle, and the time. Exits with 1 if there are more than two steps: the running step, and
one that began during the hang-up.
"""

import argparse
import json
import pathlib
import random
import selectors
import socket
import ssl
import statistics
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from hearth_procs import Cluster, make_certificate  # noqa: E402  (path set above)


def connect(url, tls=None):
    host, port = url.removeprefix("http://").rsplit(":", 1)
    made = socket.create_connection((host, int(port)), timeout=60)
    return made if tls is None else tls.wrap_socket(made, server_hostname=host)


def complete(http, body, tls=None):
    text, made = json.dumps(body), connect(http, tls)
    made.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                  f"application/json\r\nContent-Length: {len(text)}\r\n\r\n{text}").encode())
    return made


def get(url, tls=None):
    start = time.monotonic()
    with urllib.request.urlopen(url, timeout=20, context=tls) as answer:
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


def streams(args, http, worker, tls):
    threads, memory = worker.status_field("Threads"), worker.status_field("VmRSS")
    body = {"prompt": [2, 3, 4, 5, 6, 7, 8, 9], "stream": True, "ignore_eos": True,
            "max_tokens": args.tokens}
    opened = []
    for _ in range(args.streams):
        opened.append(complete(http, body, tls))
    health = (http if tls is None else http.replace("http:", "https:")) + "/health"
    waits = [get(health, tls) for _ in range(100)]
    more_threads = worker.status_field("Threads") - threads
    more_kib = worker.status_field("VmRSS") - memory
    median = statistics.median(waits)
    print(f"{args.streams} streams open: /health median {median:.1f} ms, worst "
          f"{max(waits):.1f} ms; {more_threads} more threads, "
          f"{more_kib / args.streams:.0f} KiB a stream")
    for made in opened:
        made.close()
    return median < 50 and more_kib <= 64 * args.streams


def metric(page, name):
    with urllib.request.urlopen(page + "/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines
               if line.split("{")[0].split(" ")[0] == "hearth_worker_" + name)


def hang_up(args, http, page, decodes, is_stream, seed):
    source = random.Random(seed)
    began = "decode_steps_total" if decodes else "prefill_steps_total"
    before, callers = metric(page, began), []
    for _ in range(args.streams):
        prompt = [2] + [source.randrange(300, 690) for _ in range(64 if decodes else 900)]
        callers.append(complete(http, {"prompt": prompt, "stream": is_stream, "ignore_eos": True,
                                       "max_tokens": 100}))
    while metric(page, began) < before + 3:
        pass
    steps, start = metric(page, "steps_total"), time.monotonic()
    for made in callers:
        made.close()
    while metric(page, "running_requests") + metric(page, "queued_requests") > 0:
        pass
    return metric(page, "steps_total") - steps, (time.monotonic() - start) * 1e3


def hangups(args, http, page):
    most = 0
    for decodes in (False, True):
        for is_stream in (False, True):
            all_of = [hang_up(args, http, page, decodes, is_stream, seed)
                      for seed in range(args.rounds)]
            steps = sorted(int(each[0]) for each in all_of)
            most = max(most, steps[-1])
            print(f"{args.streams} callers leave, {'decode' if decodes else 'prefill'}, "
                  f"{'streaming' if is_stream else 'not streaming'}: {steps} steps, at rest after "
                  f"{', '.join(f'{each[1]:.0f}' for each in all_of)} ms")
    return most <= 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("what", choices=("scrapes", "streams", "hangups"))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--half", type=int, default=64)
    parser.add_argument("--streams", type=int, help="default: 512; with hangups 32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--tls", action="store_true")
    args = parser.parse_args()
    args.streams = args.streams or (32 if args.what == "hangups" else 512)
    with tempfile.TemporaryDirectory() as folder, Cluster(ROOT / "build/bin", folder) as cluster:
        tls, flags = None, ()
        if args.tls:
            certificate, key = make_certificate(folder, "worker")
            tls = ssl.create_default_context(cafile=certificate)
            flags = ("--tls-cert", certificate, "--tls-key", key)
        # No pool: pooled answers would count as memory of the connections.
        worker = cluster.worker(args.model, "none", "--max-queue", 2 * args.streams,
                                "--pool-bytes", "0", *flags, pages=("http", "metrics"))
        if args.what == "scrapes":
            return 0 if scrapes(args, worker.url("metrics")) else 1
        if args.what == "hangups":
            return 0 if hangups(args, worker.url("http"), worker.url("metrics")) else 1
        return 0 if streams(args, worker.url("http"), worker, tls) else 1


if __name__ == "__main__":
    sys.exit(main())
