"""First token of two tenants while a third sends many calls at once.

    .venv/bin/python bench/tenants.py [--model FILE] [--calls 85] [--rounds 9]

A worker knows three tenants. In each round, the two tenants `first` and `second` stream a short
chat by turns, alone; then the tenant `many` sends --calls chats at once, and the two stream theirs
again while these run. All texts are new. Printed: for each round the medians of the first token
alone and beside, in ms; the longest gap between two tokens of one of the two, which contains one
step; the medians of all; calls that failed, by tenant. Exits with 1 if a call of the two failed, or
if the median beside is above 1.5 x the median alone and one step.
"""

import pathlib
import random
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import figures  # noqa: E402  (path set above)
from attack import identities_file  # noqa: E402  (path set above)
from hearth_procs import Cluster  # noqa: E402  (path set above)
from kv_pressure import WORDS, Chat  # noqa: E402  (path set above)

TENANTS = ("first", "second", "many")
MOST_RATIO = 1.5


class Bench:
    def __init__(self, args, url, tokens):
        self.args, self.url, self.tokens = args, url, tokens
        self.source = random.Random(5)
        self.failed = dict.fromkeys(TENANTS, 0)

    def chat(self, tenant):
        text = " ".join(self.source.choices(WORDS, k=self.args.words))
        tokens = self.args.many_tokens if tenant == "many" else self.args.tokens
        return Chat(self.url, text, tokens, self.tokens[tenant])

    def honest(self, turns):
        """Runs chats of both tenants; returns (median first token, longest gap between two tokens)
        in ms."""
        first_ms, gaps = [], [0]
        for number in range(turns):
            tenant = TENANTS[number % 2]
            chat = self.chat(tenant)
            chat.run()
            if chat.error:
                self.failed[tenant] += 1
                print(f"{tenant}: {chat.error}", file=sys.stderr)
                continue
            first_ms.append((chat.times[0] - chat.begin) * 1e3)
            gaps += [(late - early) * 1e3 for early, late in zip(chat.times, chat.times[1:])]
        if not first_ms:
            raise SystemExit("all calls of the two tenants failed; the errors are above")
        return statistics.median(first_ms), max(gaps)

    def round(self):
        alone, _ = self.honest(self.args.turns)
        many = [self.chat("many") for _ in range(self.args.calls)]
        for chat in many:
            chat.start()
        time.sleep(1)  # wait until the server has received all chats
        beside, step = self.honest(self.args.turns)
        running = sum(chat.is_alive() for chat in many)
        for chat in many:
            chat.join()
        self.failed["many"] += sum(chat.error is not None for chat in many)
        return {"alone": alone, "beside": beside, "step": step, "running": running}


def main():
    parser = figures.flags(__doc__)
    parser.add_argument("--calls", type=int, default=85)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--turns", type=int, default=6, help="calls of the two tenants in a round")
    parser.add_argument("--words", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--many-tokens", type=int, default=50, help="tokens of each of --calls")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work, Cluster(args.bin, work) as cluster:
        file, tokens = identities_file(pathlib.Path(work), TENANTS)
        worker = cluster.worker(args.model, "none", "--identities-file", file, pages=("http",))
        bench = Bench(args, worker.url("http"), tokens)
        bench.honest(2)  # the first calls are slower and are not measured
        rounds = []
        for _ in range(args.rounds):
            rounds.append(bench.round())
            print("alone {alone:.1f} ms, beside {beside:.1f} ms, longest gap {step:.1f} ms, "
                  "{running} calls of `many` still run".format(**rounds[-1]), flush=True)
    alone, beside, step = (statistics.median(one[name] for one in rounds)
                           for name in ("alone", "beside", "step"))
    most = MOST_RATIO * alone + step
    print(f"medians: alone {alone:.1f} ms, beside {beside:.1f} ms, at most {most:.1f} ms; failed "
          + ", ".join(f"{tenant} {calls}" for tenant, calls in bench.failed.items()))
    figures.write(args, {"rounds": rounds, "failed": bench.failed})
    return 1 if beside > most or bench.failed["first"] or bench.failed["second"] else 0


if __name__ == "__main__":
    sys.exit(main())
