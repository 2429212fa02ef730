"""Store, AsyncStore and Worker.caches against a real store and worker; and fingerprints and layouts
against the golden vectors."""

import asyncio
import json
import random
import threading
import unittest

import python_support
import xxhash
from calls_test import ScriptedServer
from python_support import CHUNK_TOKENS, LONG_S, ROOT, PythonTest, prompt

from hearth_cache import (
    AsyncStore, AsyncWorker, Conflict, DataLoss, Fingerprint, Layout, NotFound,
    PageLayout, PreconditionFailed, Prefix, Store, Worker, system)
from hearth_cache._exchange import FetchReader
from hearth_cache.v1 import cache_store_pb2

LAYOUT = Layout("llgl", 24, 2, 16, "float32", CHUNK_TOKENS)
PRINT = Fingerprint.of(LAYOUT, {"engine": "made up", "scale": 0.5})
OTHER = Fingerprint.of(LAYOUT, {"engine": "another", "scale": 0.5})


def needed_bytes(boundary):
    return sum(len(LAYOUT.layers_of(one.group)) * LAYOUT.slice_bytes(one.tokens)
               for one in LAYOUT.needed_objects(boundary))


def bytes_of(one, layer, seed=0):
    return random.Random(f"{one} {layer} {seed}").randbytes(LAYOUT.slice_bytes(one.tokens))


class Vectors(unittest.TestCase):
    def setUp(self):
        golden = ROOT / "tests" / "proto" / "golden"
        self.vectors = json.loads((golden / "vectors.json").read_text())

    def test_fingerprint_digest_equals_golden_vector(self):
        for vector in self.vectors["fingerprints"]:
            fields = tuple(sorted((name, value) for name, _, value in vector["fields"]))
            kinds = {name: kind for name, kind, _ in vector["fields"]}
            fields = tuple((name, float(value) if kinds[name] == "number" else value)
                           for name, value in fields)
            made = Fingerprint(LAYOUT, fields)
            self.assertEqual(made.canonical().hex(), vector["canonical_hex"])
            self.assertEqual(made.digest.hex(), vector["digest"])

    def test_boundary_needs_objects_overlapping_tail(self):
        for boundary in range(1, 100):
            needed = LAYOUT.needed_objects(boundary)
            ends = {0: [], 1: []}
            for one in needed:
                ends[one.group].append((one.begin, one.end))
            self.assertEqual(ends[0][0][0], 0)
            self.assertLessEqual(ends[1][0][0], max(0, boundary - 23))
            self.assertGreater(ends[1][0][1], max(0, boundary - 23))
            for group in ends.values():
                self.assertEqual(group[-1][1], boundary)
                self.assertEqual([end for _, end in group[:-1]], [begin for begin, _ in group[1:]])

    def test_invalid_layout_is_refused(self):
        for wrong in ({"dtype": "int8"}, {"layer_types": "gx"}, {"window": 0}):
            with self.assertRaises(ValueError):
                Layout(**{"layer_types": "gl", "window": 8, "kv_heads": 1, "head_dim": 16,
                          "dtype": "float32", **wrong})


class Prefixes(PythonTest):
    def setUp(self):
        super().setUp()
        self.node = self.cluster.store(self.folder / "data")
        self.store = Store(self.node.address)
        self.addCleanup(self.store.close)

    def keep(self, ids, *boundaries, **options):
        return self.store.publish(Prefix(PRINT, ids), boundaries or [len(ids)], bytes_of, **options)

    def expect(self, fetched, boundary):
        self.assertEqual(fetched.usable_tokens, boundary)
        self.assertEqual(sorted(fetched.objects), LAYOUT.needed_objects(boundary))
        for one in fetched.objects:
            for layer in LAYOUT.layers_of(one.group):
                self.assertEqual(fetched.slices[one.begin, layer], bytes_of(one, layer))
        self.assertEqual(fetched.bytes, needed_bytes(boundary))

    def test_fetch_returns_published_bytes(self):
        ids = prompt(100, 1)
        ack = self.keep(ids, 48, 100, durability="disk", ttl_s=1000)
        self.assertEqual(list(ack.boundaries), [48, 100])
        self.expect(self.store.fetch(Prefix(PRINT, ids + [5])), 100)
        self.expect(self.store.fetch(Prefix(PRINT, ids)), 96)
        self.expect(self.store.fetch(Prefix(PRINT, ids + [5]), max_tokens=60), 48)
        miss = self.store.fetch(Prefix(PRINT, ids + [5]), above_tokens=100)
        self.assertEqual((miss.usable_tokens, miss.objects, miss.bytes), (0, [], 0))
        miss = self.store.fetch(Prefix(PRINT, prompt(100, 2)))
        self.assertTrue(miss.miss_reason)
        self.assertEqual(self.keep(ids, 48, 100).bytes_received, 0, "the store has it")

    def test_large_slice_is_sent_in_pieces(self):
        layout = Layout("g", 0, 4, 256, "float32", 1024)
        whole = Prefix(Fingerprint.of(layout, {}), [2] * 1025)
        data = random.Random(1).randbytes(layout.slice_bytes(1024))
        self.assertGreater(len(data), 4 << 20)
        self.store.publish(whole, [1024], lambda one, layer: memoryview(data))
        self.assertEqual(self.store.fetch(whole).slices[0, 0], data)

    def test_different_bytes_for_key_conflict(self):
        exact = Prefix(Fingerprint.of(LAYOUT, {}, exactness="invariant"), prompt(33, 3))
        self.store.publish(exact, [32], bytes_of)
        with self.assertRaises(Conflict):
            self.store.publish(exact, [32], lambda one, layer: bytes_of(one, layer, seed=1))

    def test_explain_names_differing_field(self):
        ids = prompt(50, 4)
        self.keep(ids, 48)
        other = Prefix(OTHER, ids)
        self.assertEqual(self.store.fetch(other).usable_tokens, 0)
        differs = self.store.explain(other).other_fingerprints[0]
        self.assertEqual((differs.field, differs.requested, differs.stored, differs.matched_tokens),
                         ("engine", "another", "made up", 48))

    def test_pages_differing_in_any_field_miss(self):
        shape = {"layer_types": "llgl", "window": 24, "page_bytes": 256, "chunk_tokens": 16}
        fields = {"engine": "vllm", "engine_version": "0.32.0", "dtype": "float32",
                  "cache_dtype": "auto", "isa": "AVX512", "weights_xxh3": "ab", "tp_size": 1}
        ids = prompt(50, 11)

        def found(layout, fields):
            asked = Prefix(Fingerprint.of(layout, fields), ids)
            return (self.store.fetch(asked).usable_tokens,
                    [one.field for one in self.store.explain(asked).other_fingerprints])

        page = bytes(shape["page_bytes"])
        self.store.publish(Prefix(Fingerprint.of(PageLayout(**shape), fields), ids), [48],
                           lambda one, layer: page)
        self.assertEqual(found(PageLayout(**shape), fields), (48, []))
        for name, value in {"chunk_tokens": 32, "page_bytes": 512}.items():
            self.assertEqual(found(PageLayout(**{**shape, name: value}), fields), (0, [name]))
        for name, value in {"engine_version": "0.33.0", "dtype": "bfloat16", "cache_dtype": "fp8",
                            "isa": "AVX512 amx", "weights_xxh3": "cd", "tp_size": 2}.items():
            self.assertEqual(found(PageLayout(**shape), {**fields, name: value}), (0, [name]))

    def test_restore_point_list_pin_renew_drop(self):
        self.keep(prompt(33, 5), 32, ttl_s=500)
        point, = self.store.list()
        self.assertEqual((point.tokens, point.bytes), (32, needed_bytes(32)))
        self.assertTrue(self.store.pin(point.restore_point_id).restore_point.pinned)
        self.assertEqual(self.store.drop(point.restore_point_id).kept_pinned, 1)
        self.assertFalse(self.store.unpin(point.restore_point_id).restore_point.pinned)
        self.store.renew(point.restore_point_id, 5000)
        self.assertGreater(self.store.list()[0].expires_in_s, 4000)
        self.assertEqual(self.store.drop(point.restore_point_id).dropped, 1)
        self.assertEqual(self.store.list(), [])
        with self.assertRaises(NotFound):
            self.store.pin(point.restore_point_id)
        self.assertEqual(self.store.stats().restore_points, 0)

    def test_retention_hints_reach_store(self):
        ids = prompt(33, 10)
        self.keep(ids, 32, priority=-3)
        point, = self.store.list()
        self.assertEqual((point.kept_s, point.priority), (0, -3))
        stored = self.store.fetch(Prefix(PRINT, ids))
        self.store.publish(Prefix(PRINT, ids), [32], lambda one, layer: b"", stored=stored,
                           # Publishes the stored prefix again, without bytes.
                           keep_s=100, priority=4)
        point, = self.store.list()
        self.assertGreater(point.kept_s, 50)
        self.assertEqual(point.priority, 4)

    def test_watch_resumes_after_given_event(self):
        events = self.store.watch()
        last = next(event for event in events if event.kind == event.SNAPSHOT_END)
        self.keep(prompt(33, 6), 32)
        stored = next(events)
        self.assertEqual((stored.kind, stored.restore_point.tokens), (stored.STORED, 32))
        events.close()
        resumed = self.store.watch(since=last)
        self.assertTrue(next(resumed).resumed)
        self.assertEqual(next(resumed).sequence, stored.sequence)
        resumed.close()

    def test_second_lease_waits_for_publish(self):
        prefix = Prefix(PRINT, prompt(49, 7))
        turns = []

        def wait():
            with self.store.lease(prefix, lease_s=LONG_S, wait_s=LONG_S) as turn:
                turns.append((turn.compute, turn.usable_tokens))

        with self.store.lease(prefix, lease_s=LONG_S) as turn:
            self.assertTrue(turn.compute)
            other = threading.Thread(target=wait)
            other.start()
            self.keep(prefix.token_ids, 48)
        other.join(LONG_S)
        self.assertEqual(turns, [(False, 48)])

    def test_async_store_makes_every_call(self):
        ids = prompt(100, 8)

        async def run():
            async with AsyncStore(self.node.address) as store:
                ack = await store.publish(Prefix(PRINT, ids), [48, 96], bytes_of, ttl_s=100)
                events = store.watch()
                async for event in events:
                    if event.kind == event.SNAPSHOT_END:
                        break
                await events.aclose()
                async with store.lease(Prefix(PRINT, ids), lease_s=LONG_S) as turn:
                    self.assertFalse(turn.compute)
                points = await store.list()
                for point in points:
                    await store.pin(point.restore_point_id)
                    await store.unpin(point.restore_point_id)
                await store.renew(points[0].restore_point_id, 5000)
                fetched = await store.fetch(Prefix(PRINT, ids))
                told = await store.explain(Prefix(PRINT, ids))
                dropped = await store.drop(None)
                with self.assertRaises(NotFound):
                    await store.pin(points[0].restore_point_id)
                return ack, fetched, told.usable_tokens, dropped.dropped, await store.stats()

        ack, fetched, usable, dropped, stats = asyncio.run(run())
        self.assertEqual((list(ack.boundaries), usable, dropped), ([48, 96], 96, 2))
        self.expect(fetched, 96)
        self.assertEqual(stats.restore_points, 0)


class InvalidFetchMessages(unittest.TestCase):
    """FetchReader refuses messages that a store should not send."""

    def setUp(self):
        self.prefix = Prefix(PRINT, prompt(49, 9))
        self.reader = FetchReader(self.prefix, 0, 0)
        self.plan = cache_store_pb2.FetchPlan(
            matched_tokens=48, usable_tokens=48, state=cache_store_pb2.InferenceState(
                token_count=48, next_position=48, attention_mask="causal",
                token_ids=self.prefix.token_ids[:48],
                fingerprint=cache_store_pb2.Fingerprint(digest=PRINT.digest)))
        for one in LAYOUT.needed_objects(48):
            self.plan.objects.add(begin=one.begin, tokens=one.tokens, group=one.group,
                                  slice_digests=[7] * len(LAYOUT.layers_of(one.group)))

    def take_plan(self):
        self.reader.take(cache_store_pb2.FetchResponse(plan=self.plan))

    def take_slice(self, **fields):
        self.reader.take(cache_store_pb2.FetchResponse(
            slice=cache_store_pb2.SliceData(**fields)))

    def test_plan_for_other_prefix_is_refused(self):
        state = self.plan.state
        for part, name, wrong in (
                (self.plan, "usable_tokens", 49), (state, "token_count", 47),
                (state, "next_position", 511), (state, "attention_mask", "full"),
                (state.fingerprint, "digest", b"x" * 32)):
            right = getattr(part, name)
            setattr(part, name, wrong)
            with self.assertRaises(PreconditionFailed, msg=name):
                self.take_plan()
            setattr(part, name, right)
            self.reader = FetchReader(self.prefix, 0, 0)
        state.token_ids[40] += 1
        with self.assertRaisesRegex(PreconditionFailed, "token_ids"):
            self.take_plan()
        state.token_ids[40] -= 1
        self.reader = FetchReader(self.prefix, 0, 0)
        del self.plan.objects[-1]
        with self.assertRaisesRegex(PreconditionFailed, "objects"):
            self.take_plan()

    def test_invalid_slice_is_data_loss(self):
        with self.assertRaisesRegex(DataLoss, "without a plan"):
            self.take_slice(object=0, layer=2, data=b"x")
        self.take_plan()
        size = LAYOUT.slice_bytes(CHUNK_TOKENS)
        for fields, why in (({"object": 99, "layer": 2, "data": b"x"}, "object 99"),
                            ({"object": 0, "layer": 0, "data": b"x"}, "layer 0"),
                            ({"object": 0, "layer": 2, "data": b"x", "offset": 8}, "at 8"),
                            ({"object": 0, "layer": 2, "data": b"x" * (size + 1)}, "; expected "),
                            ({"object": 0, "layer": 2, "data": b"x" * size}, "digest")):
            with self.assertRaisesRegex(DataLoss, why):
                self.take_slice(**fields)
        with self.assertRaisesRegex(DataLoss, "8 slices"):
            self.reader.end()
        with self.assertRaisesRegex(DataLoss, "second plan"):
            self.take_plan()

    def answer(self, seed):
        """Returns the messages of a fetch with the bytes of `seed` but the digests of seed 0."""
        messages = [cache_store_pb2.FetchResponse(plan=self.plan)]
        for number, one in enumerate(LAYOUT.needed_objects(48)):
            for at, layer in enumerate(LAYOUT.layers_of(one.group)):
                digest = xxhash.xxh3_64_intdigest(bytes_of(one, layer))
                messages[0].plan.objects[number].slice_digests[at] = digest
                messages.append(cache_store_pb2.FetchResponse(slice=cache_store_pb2.SliceData(
                    object=number, layer=layer, data=bytes_of(one, layer, seed))))
        return messages

    def test_renew_without_plan_is_data_loss(self):
        with ScriptedServer([]) as server, Store(server.address, retries=0) as store:
            with self.assertRaisesRegex(DataLoss, "without a plan"):
                store.renew(b"x" * 32, 60)

    def test_damaged_slice_is_fetched_once_more(self):
        with ScriptedServer(self.answer(1), self.answer(0)) as server, \
                Store(server.address) as store:
            fetched = store.fetch(self.prefix)
            self.assertEqual((fetched.usable_tokens, server.calls), (48, 2))
        with ScriptedServer(self.answer(1)) as server, Store(server.address) as store:
            with self.assertRaisesRegex(DataLoss, "digest"):
                store.fetch(self.prefix)
            self.assertEqual(server.calls, 2)


class NamedCaches(PythonTest):
    def setUp(self):
        super().setUp()
        self.store = self.cluster.store(self.folder / "data")
        self.node = self.worker(self.text_model(), self.store.address)

    def test_cache_create_list_update_delete(self):
        with Worker(self.node.address, store=self.store.address) as worker:
            rules = "the lighthouse keeper writes down each ship that passes."
            made = worker.caches.create([system(rules)], ttl_s=500)
            tokens = len(worker.tokenize([system(rules)], omit_generation_prompt=True).token_ids)
            self.assertEqual(made.tokens, tokens)
            self.assertEqual(worker.caches.create([system(rules)], ttl_s=400).id, made.id)
            self.assertIn(made.id, [cache.id for cache in worker.caches.list()])
            later = worker.caches.update(made.id, ttl_s=5000)
            self.assertGreater(later.expires_in_s, 4000)
            ids = worker.caches.create(prompt(45, 1))
            self.assertEqual((ids.tokens, ids.expires_in_s), (45, None))
            text = worker.caches.create("the ship that came at dawn, and the next one")
            self.assertGreater(text.tokens, 5)
            worker.caches.delete(made.id)
            with self.assertRaises(NotFound):
                worker.caches.get(made.id)

    def test_cache_list_needs_store_address(self):
        with Worker(self.node.address) as worker, self.assertRaisesRegex(ValueError, "store="):
            worker.caches.list()

    def test_async_worker_manages_caches(self):
        async def run():
            async with AsyncWorker(self.node.address, store=self.store.address) as worker:
                made = await worker.caches.create(prompt(45, 2), ttl_s=500)
                later = await worker.caches.update(made.id, ttl_s=5000)
                await worker.caches.delete(made.id)
                left = [cache.id for cache in await worker.caches.list()]
                return made, later, left

        made, later, left = asyncio.run(run())
        self.assertEqual((made.tokens, later.id), (45, made.id))
        self.assertGreater(later.expires_in_s, 4000)
        self.assertNotIn(made.id, left)


if __name__ == "__main__":
    python_support.main()
