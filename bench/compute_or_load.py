"""Compute or load: time to first token by a throttled link, with --load always, never and auto.

    .venv/bin/python bench/compute_or_load.py [--model DIR] [--rates 0.2,1,5,50,500]
        [--prefix 2048] [--reps 5] [--json FILE]

A TCP proxy between the store and the workers limits each direction to each of --rates, in MB/s; the
last turn uses shared memory without the proxy. The workers have exactness invariant and no pool.
One always loads (its fetch budget is an hour), one never loads, and one, new for each rate,
decides: it gets three requests before it is measured. Then all three get requests by turns, each
with another ending, that only read the cache. The row with an arrow is the first request of auto
after the fastest link became the slowest, of a new worker each time. If a load would take more
than --patience seconds at a rate, it is not measured: the printed time is bytes / rate. Printed:
median TTFT of each worker, auto's decisions, and the ratio of auto to the better of the others. The
bar is 1.10.
"""

import asyncio
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import figures  # noqa: E402  (path set above)
from hearth_procs import Cluster  # noqa: E402  (path set above)

PIECE_BYTES = 16 << 10
BAR = 1.10


class ThrottlingProxy:
    """Forwards TCP on loopback. `rate`: bytes a second in each direction, for all connections
    together."""

    def __init__(self, target):
        host, port = target.rsplit(":", 1)
        self.target = (host, int(port))
        self.rate = float("inf")
        self.free_at = {"up": 0.0, "down": 0.0}
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()

        def run():
            asyncio.set_event_loop(self.loop)
            server = self.loop.run_until_complete(
                asyncio.start_server(self._serve, "127.0.0.1", 0, limit=PIECE_BYTES))
            self.address = "127.0.0.1:%d" % server.sockets[0].getsockname()[1]
            ready.set()
            self.loop.run_forever()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        ready.wait()

    async def _pass_on(self, reader, writer, way):
        try:
            while data := await reader.read(PIECE_BYTES):
                now = time.monotonic()
                self.free_at[way] = max(self.free_at[way], now) + len(data) / self.rate
                # asyncio's timers have a resolution of 1 ms, so a delay of 2 ms or less is carried
                # over to the next piece.
                if (wait := self.free_at[way] - now) > 0.002:
                    await asyncio.sleep(wait)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def _serve(self, reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.close()
            return
        # Keep write buffers small: bytes in a buffer count as not yet sent.
        for end in (writer, far_writer):
            end.transport.set_write_buffer_limits(high=PIECE_BYTES)
        await asyncio.gather(self._pass_on(reader, far_writer, "up"),
                             self._pass_on(far_reader, writer, "down"))

    def close(self):
        async def end():
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


class Bench:
    def __init__(self, args, cluster, store_address):
        self.args, self.cluster = args, cluster
        self.proxy = ThrottlingProxy(store_address)
        self.store_address = store_address
        self.source = random.Random(1)
        self.prefix = [2] + self.tokens(args.prefix - 1)

    def tokens(self, count):
        return [self.source.randrange(1000, 200000) for _ in range(count)]

    def worker(self, load, address):
        flags = ["--exactness", "invariant", "--pool-bytes", "0", "--load", load, "--threads",
                 self.args.threads]
        if load == "always":
            flags += ["--fetch-budget", "3600s"]
        # Without this flag, the worker would read shared memory and bypass the proxy.
        if address == self.proxy.address:
            flags += ["--store-shared-memory", "off"]
        return self.cluster.worker(self.args.model, address, *flags)

    def ask(self, worker, *flags):
        return self.cluster.generate(worker.address, self.prefix + self.tokens(self.args.ending),
                                     "--breakpoint", self.args.prefix, *flags)

    def measure(self, sides, warm, turns=None):
        """Measures the workers of `sides` alternately. Before that, each worker in `warm` gets
        three requests, from which it learns the speed of the link."""
        for worker in warm:
            for _ in range(3):
                self.ask(worker, "--cache", "read")
        times = {side: [] for side in sides}
        decided = []
        for _ in range(turns or self.args.reps):
            for side, worker in sides.items():
                out = self.ask(worker, "--cache", "read")
                times[side].append(out["ttft_ms"])
                if side == "auto":
                    decided.append(out["load_decision"])
        return {side: statistics.median(all_ms) for side, all_ms in times.items()}, decided

    def slowdown(self, never, rate, slow):
        """Each repetition starts a new worker, which measures the fast link; then the link is made
        slow and the worker must decide whether to load through it."""
        turns = []
        for _ in range(self.args.reps):
            self.proxy.rate = rate * 1e6
            auto = self.worker("auto", self.proxy.address)
            for _ in range(3):
                self.ask(auto, "--cache", "read")
            self.proxy.rate = slow * 1e6
            turns.append(self.measure({"never": never, "auto": auto}, [], turns=1))
            auto.stop()
        median = {side: statistics.median(times[side] for times, _ in turns)
                  for side in ("never", "auto")}
        return median, [decision for _, decided in turns for decision in decided]

    def run(self, stored_bytes):
        rows = []
        never = self.worker("never", self.store_address)
        self.ask(never, "--wait-published")
        always = self.worker("always", self.proxy.address)
        self.ask(always, "--cache", "read")
        for rate in self.args.rates:
            self.proxy.rate = rate * 1e6
            auto = self.worker("auto", self.proxy.address)
            sides = {"always": always, "never": never, "auto": auto}
            at_least_s = stored_bytes() / self.proxy.rate
            if at_least_s > self.args.patience:
                del sides["always"]
            median, decided = self.measure(sides, [auto])
            median.setdefault("always", at_least_s * 1e3)
            rows.append(self.row(f"{rate:g} MB/s", median, decided, "always" in sides))
            auto.stop()
            if rate == max(self.args.rates) and (slow := min(self.args.rates)) < rate:
                median, decided = self.slowdown(never, rate, slow)
                median["always"] = stored_bytes() / self.proxy.rate * 1e3
                rows.append(self.row(f"{rate:g} -> {slow:g}", median, decided, False))
        always.stop()
        shared = {load: self.worker(load, self.store_address) for load in ("always", "auto")}
        median, decided = self.measure({**shared, "never": never}, shared.values())
        rows.append(self.row("shared memory", median, decided, True))
        self.proxy.close()
        return rows

    @staticmethod
    def row(name, median, decided, measured):
        better = min(median["always"], median["never"])
        row = {"link": name, **median, "always_measured": measured, "decided": decided,
               "ratio": median["auto"] / better}
        print(f"{name:14}{median['always']:10.0f}{' ' if measured else '*'}{median['never']:10.0f}"
              f"{median['auto']:10.0f}{row['ratio']:8.2f}   {', '.join(sorted(set(decided)))}",
              flush=True)
        return row


def main():
    parser = figures.flags(__doc__)
    parser.add_argument("--rates", default="0.2,1,5,50,500",
                        type=lambda text: [float(rate) for rate in text.split(",")])
    parser.add_argument("--prefix", type=int, default=2048)
    parser.add_argument("--ending", type=int, default=64)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--patience", type=float, default=20)
    args = parser.parse_args()
    print(f"TTFT (median of {args.reps}, ms), {args.prefix} + {args.ending} tokens; "
          "* not measured: bytes at that rate")
    print(f"{'link':14}{'always':>10} {'never':>10}{'auto':>10}{'ratio':>8}   auto decided")
    with tempfile.TemporaryDirectory() as work, Cluster(args.bin, work) as cluster:
        store = cluster.store(pathlib.Path(work) / "data")

        def stored_bytes():
            stats = cluster.ctl("stats", "--store", store.address)
            return max(tier["bytes"] for tier in stats["tiers"])

        rows = Bench(args, cluster, store.address).run(stored_bytes)
    worst = max(row["ratio"] for row in rows)
    print(f"worst ratio {worst:.2f} (bar {BAR})")
    figures.write(args, rows)
    return 0 if worst <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
