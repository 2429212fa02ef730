"""One store and two workers: warm first logits equal cold ones, from every tier and boundary."""

import system_support
from system_support import GEOMETRIES, CHUNK_TOKENS, BackgroundRequests, SystemTest, prompt

PROMPT_TOKENS = 150
NEW_TOKENS = 4
BREAKPOINTS = (37, 96)  # token positions: one inside a chunk, one between two chunks
LAST_CHUNK = (PROMPT_TOKENS - 1) // CHUNK_TOKENS * CHUNK_TOKENS
# {exactness: published tokens}. "auto": prompt and answer, except the answer's last token, which
# has no KV yet. "exact": the prompt up to its last whole chunk.
END = {"auto": PROMPT_TOKENS + NEW_TOKENS - 1, "exact": LAST_CHUNK}


class Restore(SystemTest):

    def ask(self, worker, ids, *flags):
        marks = [flag for mark in BREAKPOINTS if mark <= len(ids)
                 for flag in ("--breakpoint", mark)]
        return self.cluster.generate(worker.address, ids, *marks, *flags,
                                     max_new_tokens=NEW_TOKENS)

    def points(self):
        """Yields each kept boundary, with a prompt that continues differently after it."""
        shared = prompt(PROMPT_TOKENS, 1)
        for boundary in (*BREAKPOINTS, LAST_CHUNK):
            yield boundary, shared[:boundary] + [5, 7, 9]

    def check_geometry(self, name, exactness="auto"):
        data = self.folder / "data"
        store = self.cluster.store(data)
        model = self.model(name)
        flags = ("--exactness", exactness)
        first = self.worker(model, store.address, *flags, pool_bytes="64MiB")
        second = self.worker(model, store.address, *flags)
        with BackgroundRequests(self.cluster, first.address), \
                BackgroundRequests(self.cluster, second.address):
            shared = prompt(PROMPT_TOKENS, 1)
            stored = self.ask(first, shared, "--wait-published")
            self.assertEqual(stored["cached_tokens"], 0)
            self.assertEqual(stored["published_tokens"], END[exactness])
            self.assertEqual(stored["durable"], "disk")
            cold = {}
            for boundary, ids in self.points():
                cold[boundary] = self.ask(first, ids, "--cache", "off")
                self.assertEqual(cold[boundary]["cached_tokens"], 0)
                warm = self.ask(first, ids, "--cache", "read")
                self.expect_restored(warm, cold[boundary], boundary, "worker")
                warm = self.ask(second, ids, "--cache", "read")
                self.expect_restored(warm, cold[boundary], boundary, "host")
            warm = self.ask(second, shared, "--cache", "read")
            self.expect_restored(warm, stored, LAST_CHUNK, "host")
            self.assertEqual(store.stop(), 0)
            store = self.cluster.store(data, "--host-bytes", "0", listen=store.address)
            third = self.worker(model, store.address, *flags)
            for boundary, ids in self.points():
                warm = self.ask(third, ids, "--cache", "read")
                self.expect_restored(warm, cold[boundary], boundary, "disk")

    def test_narrow_window_restores_exactly(self):
        self.check_geometry("narrow")

    def test_wide_window_restores_exactly(self):
        self.check_geometry("wide")

    def test_irregular_layers_restore_exactly(self):
        self.check_geometry("irregular")

    def test_exact_class_restores_exactly(self):
        self.check_geometry("wide", "exact")

    def test_embedded_store_restores_after_restart(self):
        model = self.model()
        spec = f"embedded:{self.folder / 'data'}"
        worker = self.worker(model, spec)
        shared = prompt(PROMPT_TOKENS, 1)
        stored = self.ask(worker, shared, "--wait-published")
        self.expect_restored(self.ask(worker, shared), stored, LAST_CHUNK, "host")
        stats = self.cluster.ctl("stats", "--store", worker.address)
        self.assertGreaterEqual(stats["restore_points"], 1)
        self.assertEqual(worker.stop(), 0)
        again = self.worker(model, spec)
        self.expect_restored(self.ask(again, shared), stored, LAST_CHUNK, "disk")


assert set(GEOMETRIES) == {"narrow", "wide", "irregular"}

if __name__ == "__main__":
    system_support.main()
