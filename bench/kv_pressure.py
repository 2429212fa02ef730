"""Chats under too little memory for keys and values: time, texts, and gaps between tokens.

    .venv/bin/python bench/kv_pressure.py [--model FILE] [--kv-bytes 48MiB] [--chats 16]
        [--rounds 9]

Two workers are asked by turns: one with --kv-bytes, one with room for all. In each round,
--chats chats without max_tokens, of --words new words each, begin 10 ms apart; each client hangs up
after --tokens pieces of text. Both workers get the same chats. Printed: for each round the time of
both, from the first call to the last token, and their ratio; the medians; the 99th percentile of
the time between two tokens of the first chat of each round, which is the oldest and is never
preempted; preemptions, and computed tokens. Exits with 1 if the median of the ratios or the ratio
of the percentiles is above --bar, a call fails, or a text differs.
"""

import json
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import figures  # noqa: E402  (path set above)
from attack import percentile  # noqa: E402  (path set above)
from hearth_procs import Cluster  # noqa: E402  (path set above)
from http_door import metric  # noqa: E402  (path set above)

WORDS = ("river", "house", "winter", "letter", "garden", "market", "window", "morning", "bridge",
         "story", "island", "music", "doctor", "engine", "forest", "silver", "number", "summer")
COUNTERS = ("preemptions", "recomputed_tokens", "computed_tokens")


class Chat(threading.Thread):
    """Streams a chat without max_tokens, and hangs up after `tokens` pieces of text."""

    def __init__(self, url, text, tokens, token=""):
        super().__init__()
        self.url, self.text, self.tokens = url, text, tokens
        self.headers = {"Content-Type": "application/json"}
        if token:
            self.headers["Authorization"] = "Bearer " + token
        self.begin = time.monotonic()
        self.pieces, self.times, self.error = [], [], None

    def run(self):
        body = {"messages": [{"role": "user", "content": self.text}], "stream": True,
                "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(self.url + "/v1/chat/completions",
                                         json.dumps(body).encode(), self.headers)
        self.begin = time.monotonic()
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                for line in answer:
                    if not line.startswith(b"data: {"):
                        continue
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise OSError(event["error"])
                    piece = event["choices"][0]["delta"].get("content")
                    if not piece:  # an event with the role, or with an incomplete character
                        continue
                    self.pieces.append(piece)
                    self.times.append(time.monotonic())
                    if len(self.pieces) == self.tokens:
                        return
            raise OSError(f"the answer ended after {len(self.pieces)} pieces of text")
        except OSError as error:
            self.error = error


def turn(worker, texts, tokens):
    begin = time.monotonic()
    chats = [Chat(worker.url("http"), text, tokens) for text in texts]
    for chat in chats:
        chat.start()
        time.sleep(0.01)  # the first chat must arrive first, as the oldest request
    for chat in chats:
        chat.join()
    return time.monotonic() - begin, chats


def main():
    parser = figures.flags(__doc__)
    parser.add_argument("--kv-bytes", default="48MiB")
    parser.add_argument("--chats", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--words", type=int, default=230,
                        help="default: answers need more than two blocks of 128 tokens")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--bar", type=float, default=1.2)
    args = parser.parse_args()
    source = random.Random(3)
    rows, gaps, faults = [], {"little": [], "ample": []}, []
    with tempfile.TemporaryDirectory() as work, Cluster(args.bin, work) as cluster:
        pages = ("http", "metrics")
        workers = {
            "little": cluster.worker(args.model, "none", "--kv-bytes", args.kv_bytes, pages=pages),
            "ample": cluster.worker(args.model, "none", pages=pages)}
        for number in range(args.rounds + 1):
            texts = [" ".join(source.choices(WORDS, k=args.words)) for _ in range(args.chats)]
            row, chats = {}, {}
            for side in list(workers)[::1 if number % 2 else -1]:
                row[side], chats[side] = turn(workers[side], texts, args.tokens)
            faults += [f"{side}: {chat.error}" for side in chats for chat in chats[side]
                       if chat.error]
            faults += ["a text differs" for few, many in zip(chats["little"], chats["ample"])
                       if "".join(few.pieces) != "".join(many.pieces)]
            if number == 0:
                continue  # the first round only warms up the workers
            rows.append(row)
            for side in workers:
                times = chats[side][0].times
                gaps[side] += [after - before for before, after in zip(times, times[1:])]
            print(f"little {row['little']:6.2f} s  ample {row['ample']:6.2f} s  "
                  f"ratio {row['little'] / row['ample']:.3f}", flush=True)
        counted = {side: {name: metric(worker.url("metrics"), name + "_total")
                          for name in COUNTERS} for side, worker in workers.items()}
    ratio = statistics.median(row["little"] / row["ample"] for row in rows)
    late = {side: percentile(all_gaps, .99) * 1e3 for side, all_gaps in gaps.items()}
    print(f"median of the ratios {ratio:.3f}; p99 between tokens of the oldest chat "
          f"{late['little']:.1f} and {late['ample']:.1f} ms, {late['little'] / late['ample']:.3f}")
    for side, values in counted.items():
        print(side, ", ".join(f"{name} {value:.0f}" for name, value in values.items()))
    for fault in faults:
        print("FAULT:", fault)
    figures.write(args, {"rows": rows, "p99_ms": late, "counters": counted, "faults": faults})
    return 1 if faults or max(ratio, late["little"] / late["ample"]) > args.bar else 0


if __name__ == "__main__":
    sys.exit(main())
