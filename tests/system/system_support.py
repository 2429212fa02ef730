"""Shared by tests of whole processes: tiny models, clusters in temporary folders, background
requests.

Run as: python NAME_test.py BIN_DIR WRITE_CHECKPOINT [unittest arguments]. A test of only a store
has STORE_CLIENT (tests/services/store/store_client_main.cc) instead of WRITE_CHECKPOINT.
"""

import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from hearth_procs import Cluster, ProcessFailed  # noqa: E402  (path set above)

CHUNK_TOKENS = 16
VOCABULARY = 160
LONG_S = 120  # time limit of a wait; only a hanging process reaches it
# environment variables that set flags of Hearth's programs
FLAG_VARIABLES = ("HEARTH_STORE_", "HEARTH_WORKER_", "HEARTHCTL_")

# {name: (layer types, window, heads, KV heads, head_dim)}: a window smaller than a chunk, a window
# of several chunks, and irregular layers with one KV head.
GEOMETRIES = {
    "narrow": ("llgl", 9, 4, 2, 16),
    "wide": ("lllg", 70, 4, 4, 16),
    "irregular": ("gllgl", 24, 2, 1, 32),
}

BIN_DIR = None
WRITE_CHECKPOINT = None
STORE_CLIENT = None


def prompt(tokens, seed):
    """Returns token ids; prompts of one seed are prefixes of each other."""
    source = random.Random(seed)
    return [2] + [source.randrange(3, VOCABULARY) for _ in range(tokens - 1)]


class SystemTest(unittest.TestCase):
    """Each test has a temporary folder, and a cluster whose processes end with the test."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hearth-system-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.cluster = Cluster(BIN_DIR, self.folder / "processes")
        self.addCleanup(self.cluster.__exit__)

    def model(self, name="wide", seed=1, context_tokens=2048, vocabulary=VOCABULARY, dtype=None):
        """Makes a model with a geometry of GEOMETRIES; returns its folder. `dtype`: "bfloat16";
        None: float32."""
        folder = self.folder / f"model-{name}-{seed}"
        folder.mkdir()
        subprocess.run([WRITE_CHECKPOINT, folder, *map(str, GEOMETRIES[name]),
                        str(context_tokens), str(seed), str(vocabulary),
                        *([dtype] if dtype else [])], check=True)
        return folder

    def worker(self, model, store_address, *flags, pool_bytes=0, chunk_tokens=CHUNK_TOKENS,
               **options):
        # --load always and a long --fetch-budget: whether a prefix is restored must not depend on
        # the machine's speed.
        return self.cluster.worker(
            model, store_address, "--load", "always", "--fetch-budget", f"{LONG_S}s",
            "--chunk-tokens", chunk_tokens, "--threads", "1", "--pool-bytes", pool_bytes,
            "--digest-cache", "", *flags, **options)

    def wait_for_metrics(self, url, *lines):
        """Waits until a server's page of metrics has all these texts: the server counts a call
        after its answer."""
        end = time.monotonic() + LONG_S
        while True:
            with urllib.request.urlopen(url + "/metrics", timeout=LONG_S) as answer:
                page = answer.read().decode()
            missing = [line for line in lines if line not in page]
            if not missing:
                return
            self.assertLess(time.monotonic(), end, f"{missing} not in {page}")

    def expect_restored(self, warm, cold, cached_tokens, tier):
        """Checks that `warm` restored this many tokens from `tier` and has the bits of `cold`."""
        self.assertEqual(warm["cached_tokens"], cached_tokens)
        self.assertEqual(warm["source_tier"], tier)
        self.assertEqual(warm["first_logits_sha256"], cold["first_logits_sha256"])
        self.assertEqual(warm["token_ids"], cold["token_ids"])

    def fails_to_start(self, program, *flags):
        """Runs a program that must fail to start; returns its error line."""
        done = subprocess.run([str(pathlib.Path(BIN_DIR) / program), *map(str, flags)],
                              capture_output=True, text=True, timeout=120, check=False)
        self.assertNotEqual(done.returncode, 0, done.stderr)
        said = [line for line in done.stderr.splitlines() if line.startswith(program + ": ")]
        self.assertEqual(len(said), 1, done.stderr)
        return said[0]


class BackgroundThread:
    """Runs `_run` on a thread while the block runs; the end of the block sets `_stop`."""

    def __init__(self):
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *unused):
        self._stop.set()
        self._thread.join()


class BackgroundRequests(BackgroundThread):
    """Keeps a worker busy with random prompts while the block runs."""

    def __init__(self, cluster, address, seed=99):
        super().__init__()
        self._cluster, self._address = cluster, address
        self._source = random.Random(seed)
        self.answered = 0

    def _run(self):
        while not self._stop.is_set():
            ids = prompt(self._source.randrange(20, 200), self._source.random())
            self._cluster.generate(self._address, ids, "--cache", "off", max_new_tokens=8)
            self.answered += 1


def main(helper="WRITE_CHECKPOINT"):
    """Runs the tests. `helper`: which variable above the second argument sets."""
    global BIN_DIR
    BIN_DIR = sys.argv.pop(1)
    globals()[helper] = sys.argv.pop(1)
    for name in [name for name in os.environ if name.startswith(FLAG_VARIABLES)]:
        del os.environ[name]
    unittest.main(module="__main__")


__all__ = ["BackgroundRequests", "BackgroundThread", "CHUNK_TOKENS", "GEOMETRIES", "LONG_S",
           "ProcessFailed", "ROOT", "SystemTest", "main", "prompt"]
