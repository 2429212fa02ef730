"""Tests a hearth-store on real volumes that are small or full. Needs root, to mount them.

small: for --seconds, points are published to a store with the default --disk-bytes on an empty
volume; no publish may be refused, and the files must stay below nine tenths of the volume.
full: a store has 20 points when another program fills the volume. All points are fetched before,
while the volume is full, after a restart on the full volume, and when there is room again; then the
store must accept a publish within 10 s.
filled: a store of --old-bin-dir, whose disk limit does not follow the volume, fills the volume
until it refuses publishes. BIN_DIR's store must accept a publish within 10 s of its start, serve
the right bytes of the points it still has, and accept 20 more publishes, each within 10 s.

usage: full_disks.py BIN_DIR PACKAGE small|full|filled [--kind tmpfs|ext4] [--mib N] [--seconds N]
       [--runs N] [--chunks N] [--old-bin-dir DIR]
PACKAGE is the folder of the Python package that scripts/python_package.sh makes (build/python).
"""

import argparse
import contextlib
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from hearth_procs import Cluster  # noqa: E402  (path set above)

MIB = 1 << 20
CHUNK = 64
SKIPPED = 77
POINTS = 20
PATIENCE_S = 10


class Volume:
    """A small file system, mounted for this test."""

    def __init__(self, kind, mib, folder):
        self.folder = folder / "volume"
        self.folder.mkdir()
        if kind == "tmpfs":
            mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", self.folder]
        else:
            image = folder / "image"
            with open(image, "wb") as file:
                file.truncate(mib * MIB)
            subprocess.run(["mkfs.ext4", "-q", image], check=True)
            mount = ["mount", "-o", "loop", image, self.folder]
        self.is_mounted = subprocess.run(mount, check=False).returncode == 0
        self.data = self.folder / "data"
        self._filler = self.folder / "filler"

    def close(self):
        if self.is_mounted:
            subprocess.run(["umount", "-l", self.folder], check=True)

    def bytes(self):
        stat = os.statvfs(self.folder)
        return stat.f_blocks * stat.f_frsize

    def fill(self, piece_bytes=MIB, pause_s=0.0):
        """Writes a file until not one more byte fits."""
        with open(self._filler, "ab", buffering=0) as file:
            piece = os.urandom(piece_bytes)
            while piece:
                try:
                    file.write(piece)
                except OSError:
                    piece = piece[:len(piece) // 2]
                time.sleep(pause_s)

    def make_some_room(self, number_of_bytes):
        os.truncate(self._filler, max(0, self._filler.stat().st_size - number_of_bytes))

    def make_room(self):
        self._filler.unlink()

    def data_bytes(self):
        total = 0
        for path in self.data.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_blocks * 512 if path.is_file() else 0
        return total


class Points:
    """Publishes prompts of several sizes, and records acknowledged restore points in `known`."""

    def __init__(self, cache, chunks, seed):
        self.cache = cache
        self._random = random.Random(seed)
        self._chunks = chunks
        self.models = [
            cache.Fingerprint.of(cache.Layout("gggg", 8, 2, head_dim, "float32", CHUNK),
                                 {"engine": f"bench {head_dim}"}) for head_dim in (16, 256)]
        self.known = []
        self._count = 0

    def publish(self, store, is_small=False):
        model = 0 if is_small else self._random.randrange(2)
        tokens = CHUNK * self._random.randint(1, self._chunks)
        self._count += 1
        ids = random.Random(self._count).choices(range(1000), k=tokens + 1)
        print_ = self.models[model]
        layout = print_.layout
        store.publish(self.cache.Prefix(print_, ids), [tokens],
                      lambda one, layer: self.slice_of(layout, ids, one, layer),
                      durability="disk", deadline_s=60)
        self.known.append((model, ids, tokens))

    @staticmethod
    def slice_of(layout, ids, one, layer):
        return random.Random(f"{ids[:4]} {one} {layer}").randbytes(layout.slice_bytes(one.tokens))

    def fetch(self, store, known):
        """Fetches a restore point. Returns the error, or None if the bytes are right."""
        model, ids, tokens = known
        layout = self.models[model].layout
        try:
            fetched = store.fetch(self.cache.Prefix(self.models[model], ids), deadline_s=60)
        except self.cache.HearthError as error:
            return f"{type(error).__name__}: {error}"
        if fetched.usable_tokens != tokens:
            return f"{fetched.usable_tokens} of {tokens} tokens"
        objects = {one.begin: one for one in fetched.objects}
        for (begin, layer), data in fetched.slices.items():
            if bytes(data) != self.slice_of(layout, ids, objects[begin], layer):
                return f"wrong bytes of {objects[begin]}, layer {layer}"
        return None


def run_small(cluster, volume, points, args):
    node = cluster.store(volume.data, "--host-bytes", "1MiB")
    begun, refused, published, most = time.monotonic(), 0, 0, 0
    longest_s, served_s = 0.0, begun
    stop = threading.Event()

    def watch():
        nonlocal most
        while not stop.wait(0.1):
            most = max(most, volume.data_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    wrong = []
    with points.cache.Store(node.address, retries=0) as store:
        while time.monotonic() - begun < args.seconds:
            try:
                points.publish(store)
                published += 1
                longest_s = max(longest_s, time.monotonic() - served_s)
                served_s = time.monotonic()
            except points.cache.HearthError as error:
                refused += 1
                print("refused:", error, flush=True)
            if points.known:
                said = points.fetch(store, points.known[-1])
                if said is not None:
                    wrong.append(said)
    stop.set()
    watcher.join()
    stats = cluster.ctl("stats", "--store", node.address)
    node.stop()
    limit = next(tier["capacity_bytes"] for tier in stats["tiers"] if tier["tier"] == "disk")
    share = most / volume.bytes()
    print(f"{args.kind} {args.mib} MiB: {published} publishes, {refused} refused, longest wait "
          f"{longest_s:.1f} s, limit {limit / MIB:.0f} MiB, files at most {most / MIB:.0f} MiB "
          f"({100 * share:.0f} % of the volume), {len(wrong)} wrong fetches {wrong[:3]}",
          flush=True)
    return refused == 0 and share < 0.9 and not wrong


def publishes_again_s(store, points):
    """Returns the seconds until a publish succeeds; None if none succeeds within 2 * PATIENCE_S."""
    begun = time.monotonic()
    while time.monotonic() - begun < 2 * PATIENCE_S:
        try:
            points.publish(store)
            return time.monotonic() - begun
        except points.cache.HearthError:
            time.sleep(0.1)
    return None


def run_full(cluster, volume, points, args):
    del args
    wrong = []

    def fetch_all(store, when):
        for known in points.known:
            said = points.fetch(store, known)
            if said is not None:
                wrong.append(f"{when}: {said}")

    def publish_and_fetch(store, when):
        for number in range(8):
            # Frees some disk space. The store and the other program then both write into it.
            volume.make_some_room(number % 4 * 4 * MIB)
            filling = threading.Thread(target=volume.fill, args=(64 << 10, 0.002))
            filling.start()
            while filling.is_alive():
                # Few publishes: more would exceed the store's limit and evict other restore points.
                if len(points.known) < 2 * POINTS:
                    with contextlib.suppress(points.cache.HearthError):
                        points.publish(store, is_small=True)
                fetch_all(store, when)
            filling.join()
            volume.fill()
            with contextlib.suppress(points.cache.HearthError):
                points.publish(store)
            fetch_all(store, when)

    node = cluster.store(volume.data, "--host-bytes", "1MiB")
    with points.cache.Store(node.address, retries=0) as store:
        for _ in range(POINTS):
            points.publish(store)
        fetch_all(store, "before")
        volume.fill()
        fetch_all(store, "full")
        publish_and_fetch(store, "full, with publishes")
    for end in ("stop", "kill"):
        getattr(node, end)()
        node = cluster.store(volume.data, "--host-bytes", "1MiB")
        with points.cache.Store(node.address, retries=0) as store:
            fetch_all(store, "after a start while full")
            publish_and_fetch(store, "after a start while full, with publishes")
    with points.cache.Store(node.address, retries=0) as store:
        volume.make_room()
        took_s = publishes_again_s(store, points)
        fetch_all(store, "with room again")
    node.stop()
    node = cluster.store(volume.data, "--host-bytes", "1MiB")
    with points.cache.Store(node.address, retries=0) as store:
        fetch_all(store, "at last")
    node.stop()
    print(f"{len(points.known)} points of {volume.data_bytes() / MIB:.0f} MiB, published again "
          f"after {took_s} s, {len(wrong)} wrong fetches: {wrong[:3]}", flush=True)
    return not wrong and took_s is not None and took_s <= PATIENCE_S


def run_filled(cluster, volume, points, args):
    with Cluster(args.old_bin_dir, volume.folder.parent / "old") as old:
        node = old.store(volume.data, "--host-bytes", "1MiB")
        with points.cache.Store(node.address, retries=0) as store:
            with contextlib.suppress(points.cache.HearthError):
                while True:
                    points.publish(store)
        node.stop()
    filled = len(points.known)
    node = cluster.store(volume.data, "--host-bytes", "1MiB")
    with points.cache.Store(node.address, retries=0) as store:
        took_s = publishes_again_s(store, points)
        said = [points.fetch(store, known) for known in points.known]
        waits = [publishes_again_s(store, points) for _ in range(POINTS)]
    node.stop()
    # For an evicted restore point, fetch() says how many tokens are left, which is no error.
    wrong = [one for one in said if one is not None and not one.endswith("tokens")]
    print(f"{args.kind} {args.mib} MiB: filled by {filled} points, published again after "
          f"{took_s} s, {said.count(None)} served, {len(wrong)} wrong fetches {wrong[:3]}, "
          f"waits of {POINTS} more: {waits}", flush=True)
    return not wrong and all(one is not None and one <= PATIENCE_S for one in [took_s, *waits])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin_dir")
    parser.add_argument("package")
    parser.add_argument("what", choices=["small", "full", "filled"])
    parser.add_argument("--kind", choices=["tmpfs", "ext4"], default="tmpfs")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--chunks", type=int, default=2, help="maximum MiB of a point")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--old-bin-dir")
    args = parser.parse_args()
    sys.path.insert(0, str(pathlib.Path(args.package).resolve()))
    import hearth_cache  # noqa: PLC0415  (the path is an argument)
    passed = True
    for run in range(args.runs):
        with tempfile.TemporaryDirectory(prefix="hearth-full-") as name:
            folder = pathlib.Path(name)
            volume = Volume(args.kind, args.mib, folder)
            if not volume.is_mounted:
                print(f"skipped, no {args.kind} can be mounted here")
                return SKIPPED
            try:
                with Cluster(args.bin_dir, folder / "processes") as cluster:
                    points = Points(hearth_cache, args.chunks, run)
                    step = {"small": run_small, "full": run_full, "filled": run_filled}[args.what]
                    passed = step(cluster, volume, points, args) and passed
            finally:
                volume.close()
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
