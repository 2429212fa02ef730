"""The Planner, Mover and pages of the vLLM connector, without vLLM: against a store in memory, and
with a fake of torch.cuda for the order of a device's copies."""

import contextlib
import threading
import types
import unittest
import unittest.mock

import python_support
from python_support import prompt

import torch
from hearth_cache import Unavailable, _paging
from hearth_cache._exchange import Fetched, Prefix
from hearth_cache._paging import (
    DevicePages, HostPages, Mover, Planner, Step, Transfer, hints_of, pages_of)
from hearth_cache.layout import Fingerprint, PageLayout

BLOCK, PAGE, WINDOW = 16, 64, 24
LAYOUT = PageLayout("llgl", WINDOW, PAGE, BLOCK)
GROUPS = [0, 0, 2, 1]  # number of the engine's layer group for each layer
BLOCKS_MAX = 40


def prefix_of(ids, salt, epoch=0):
    return Prefix(Fingerprint.of(LAYOUT, {"engine": "made up", "epoch": epoch}), ids)


def epoch_of(prefix):
    return dict(prefix.fingerprint.fields)["epoch"]


def request(params=None, *actions):
    """A vLLM request. `actions`: (type, payload) of its kv_hints."""
    made = types.SimpleNamespace(kv_transfer_params=params)
    if actions:
        made.kv_hints = types.SimpleNamespace(actions=[
            types.SimpleNamespace(action_type=kind, payload=payload)
            for kind, payload in actions])
    return made


class MemoryStore:
    """A fake store that keeps restore points in memory. If `error` is set, each call raises it.
    Calls wait while `answering` is not set."""

    def __init__(self):
        self.kept, self.calls, self.error, self.matched = {}, [], None, 0
        self.epochs = []  # epochs of the leases and publishes so far
        self.answering = threading.Event()
        self.answering.set()

    def call(self, name):
        self.calls.append(name)
        self.answering.wait()
        if self.error is not None:
            raise self.error

    def usable(self, prefix, most):
        return max((len(ids) for ids in self.kept
                    if len(ids) <= most and tuple(prefix.token_ids[:len(ids)]) == ids), default=0)

    @contextlib.contextmanager
    def lease(self, prefix, *, lease_s, deadline_s):
        self.epochs.append(epoch_of(prefix))
        self.call("lease")
        usable = self.usable(prefix, len(prefix.token_ids) - 1)
        yield types.SimpleNamespace(usable_tokens=usable, answer=types.SimpleNamespace(
            matched_tokens=max(usable, self.matched)))

    def fetch(self, prefix, *, above_tokens, max_tokens, place, deadline_s):
        self.call("fetch")
        usable = self.usable(prefix, max_tokens)
        if usable <= above_tokens:
            return Fetched(miss_reason="evicted")
        fetched = Fetched(usable, objects=LAYOUT.needed_objects(usable))
        for one in fetched.objects:
            for layer in LAYOUT.layers_of(one.group):
                place(fetched, one, layer, self.kept[tuple(prefix.token_ids[:usable])][one, layer])
        return fetched

    def publish(self, prefix, boundaries, slice_of, *, stored, deadline_s, **hints):
        self.call("publish")
        self.epochs.append(epoch_of(prefix))
        self.hints = hints
        for boundary in boundaries:
            self.kept[tuple(prefix.token_ids[:boundary])] = {
                (one, layer): bytes(slice_of(one, layer))
                for one in LAYOUT.needed_objects(boundary) for layer in LAYOUT.layers_of(one.group)}

    def close(self):
        pass


class PlannerRequests(unittest.TestCase):
    def setUp(self):
        self.store = MemoryStore()
        self.planner = Planner(self.store, BLOCK, lambda ids, salt, epoch: [
            prefix_of(ids, salt, epoch)])
        self.addCleanup(self.planner.close)

    def matched(self, name, computed=0):
        """Waits for the store's answer, then returns planner.matched()."""
        while (found := self.planner.matched(name, computed))[0] is None:
            self.step()
        return found

    def step(self, *scheduled):
        return self.planner.step(scheduled, lambda name: [[1] * 8] * 3)

    def test_plan_is_pending_until_store_answers(self):
        ids = prompt(100, 1)
        self.store.kept[tuple(ids[:64])] = {}
        self.store.answering.clear()
        self.planner.begin("a", ids)
        self.assertEqual(self.planner.matched("a", 0), (None, False))
        self.store.answering.set()
        self.assertEqual(self.matched("a"), (64, True))
        self.assertEqual(self.matched("a", 32), (32, True))
        self.assertEqual(self.matched("a", 64), (0, False))
        self.assertEqual(self.store.calls, ["lease"])

    def test_plan_leaves_one_token_to_compute(self):
        ids = prompt(64, 2)
        self.store.kept[tuple(ids)] = self.store.kept[tuple(ids[:48])] = {}
        self.planner.begin("a", ids)
        self.assertEqual(self.matched("a"), (48, True))
        self.planner.begin("b", ids[:16])
        self.planner.begin("c", ids, reads=False)
        self.assertEqual((self.matched("b"), self.matched("c")), ((0, False), (0, False)))
        self.assertEqual(self.store.calls, ["lease"])

    def test_load_names_blocks_and_present_tokens(self):
        ids = prompt(100, 3)
        self.store.kept[tuple(ids[:96])] = {}
        self.planner.begin("a", ids)
        self.assertEqual(self.matched("a", 32), (64, True))
        blocks = [[1] * 6, [2] * 6, [3] * 6]
        self.planner.allocated("a", blocks, 64)
        self.planner.allocated("a", blocks, 0)  # vLLM calls allocated() again after the load
        load, = self.step().loads
        self.assertEqual((load.boundaries, load.present_tokens), ([96], 32))
        self.assertEqual((load.token_ids, load.blocks), (ids[:96], blocks))
        self.assertEqual(self.step().loads, [])

    def test_failed_load_is_not_retried(self):
        ids = prompt(100, 4)
        self.store.kept[tuple(ids[:96])] = {}
        self.planner.begin("a", ids)
        self.assertEqual(self.matched("a"), (96, True))
        self.planner.failed(["a", "unheard of"])
        self.assertEqual(self.matched("a"), (0, False))
        self.planner.end("a")
        self.assertEqual(self.store.calls, ["lease"])

    def test_save_follows_last_prefill_chunk(self):
        ids = prompt(100, 5)
        self.planner.begin("a", ids)
        self.matched("a")
        self.assertEqual(self.step(("a", 0, 40)).saves, [])
        self.assertEqual(self.step(("a", 40, 95)).saves, [])
        save, = self.step(("a", 95, 100), ("unheard of", 0, 9)).saves
        self.assertEqual((save.boundaries, save.token_ids), ([96], ids[:96]))
        self.assertEqual(self.step(("a", 100, 101)).saves, [])

    def test_shared_prefix_end_becomes_restore_point(self):
        self.store.matched = 70
        self.planner.begin("a", prompt(100, 6))
        self.matched("a")
        first, = self.step(("a", 0, 64)).saves
        second, = self.step(("a", 64, 100)).saves
        self.assertEqual((first.boundaries, second.boundaries), ([64], [96]))

    def test_new_epoch_ignores_earlier_requests(self):
        ids = prompt(100, 11)
        self.store.kept[tuple(ids[:64])] = {}
        for name in ("computing", "loading"):
            self.planner.begin(name, ids)
            self.assertEqual(self.matched(name), (64, True))
        self.planner.allocated("loading", [[1] * 6] * 3, 64)
        self.planner.begin_epoch()
        self.assertEqual(self.planner.matched("computing", 0), (0, False))
        step = self.step(("computing", 0, 100))
        self.assertEqual(step.saves, [], "its first tokens may be of the old weights")
        self.assertEqual([load.epoch for load in step.loads], [0], "the engine waits for a result")
        self.assertNotEqual(step.epoch, 0)
        self.planner.failed(["loading"])
        self.assertEqual(self.planner.matched("loading", 0), (0, False))
        self.planner.begin("later", ids)
        self.matched("later")
        save, = self.step(("later", 64, 100)).saves
        self.assertEqual((save.epoch, self.store.epochs), (step.epoch, [0, 0, step.epoch]))
        self.planner.begin_epoch()
        self.assertNotIn(self.step().epoch, (0, step.epoch))

    def test_store_calls_pause_after_failure(self):
        self.store.error = Unavailable("gone")
        with self.assertLogs("hearth_cache", "WARNING"):
            self.planner.begin("a", prompt(100, 7))
            self.assertEqual(self.matched("a"), (0, False))
        self.planner.begin("b", prompt(100, 8))
        self.assertEqual(self.matched("b"), (0, False))
        self.assertEqual(self.step(("b", 0, 100)).saves, [])
        self.assertEqual(self.store.calls, ["lease"])
        self.store.error = ValueError("a mistake of ours")
        self.planner.quiet.end()
        with self.assertLogs("hearth_cache", "ERROR"):
            self.planner.begin("c", prompt(100, 9))
            self.assertEqual(self.matched("c"), (0, False))

    def test_clamped_hints_reach_saves(self):
        self.assertEqual(hints_of(request()), {})
        self.assertEqual(hints_of(request({"keep_s": 9000, "priority": "high", "other": 1})),
                         {"keep_s": 3600})
        hints = hints_of(request({"keep_s": 60}, ("another's", {"keep_s": 1}),
                                 ("hearth.keep", {"priority": -9})))
        self.assertEqual(hints, {"keep_s": 60, "priority": -8})
        self.planner.begin("a", prompt(100, 10), hints=hints)
        self.matched("a")
        save, = self.step(("a", 0, 100)).saves
        self.assertEqual(save.hints, hints)

    def test_invalid_hint_types_are_ignored(self):
        wrong = (5, 0, "", "text", [], [1], [[1]], [("keep_s", 7, 1)], True, 1.5, object())
        good = ("hearth.keep", {"keep_s": 60})
        for value in wrong:
            with self.subTest(value=value):
                self.assertEqual(hints_of(request(value)), {})
                self.assertEqual(hints_of(request(value, good)), {"keep_s": 60})
                self.assertEqual(hints_of(request({"keep_s": 60}, ("hearth.keep", value))),
                                 {"keep_s": 60})
                self.assertEqual(hints_of(request({"keep_s": value, "priority": 1})),
                                 {"priority": 1} if value not in (5, 0) or value is True
                                 else {"keep_s": value, "priority": 1})
                made = request({"keep_s": 60})
                for made.kv_hints in (value, types.SimpleNamespace(actions=value),
                                      types.SimpleNamespace(actions=[value])):
                    self.assertEqual(hints_of(made), {"keep_s": 60})
        self.assertEqual(hints_of(request(None, ("hearth.keep", None))), {})
        self.assertEqual(hints_of(request({None: 1, 5: 2, "keep_s": 10**30})), {"keep_s": 3600})
        made = request({"keep_s": 60})
        made.kv_hints = types.SimpleNamespace(actions=None)
        self.assertEqual(hints_of(made), {"keep_s": 60})

    def test_invalid_hint_is_logged_once(self):
        _paging.say_ignored.cache_clear()
        with self.assertLogs("hearth_cache", "WARNING") as logged:
            for _ in range(3):
                hints_of(request({"keep_s": "ten"}, ("hearth.keep", "ten")))
        self.assertEqual([record.getMessage() for record in logged.records], [
            "a request's hint is ignored: the payload of hearth.keep must be a mapping; got str",
            "a request's hint is ignored: keep_s must be an integer; got str"])


class MoverTransfers(unittest.TestCase):
    def setUp(self):
        self.store = MemoryStore()
        self.memory = [torch.randint(0, 256, (BLOCKS_MAX, PAGE), dtype=torch.uint8) for _ in GROUPS]
        self.pages = HostPages(self.memory)
        self.mover = Mover(self.store, LAYOUT, GROUPS, self.pages, prefix_of)
        self.addCleanup(self.mover.close)

    def save(self, ids, blocks, *boundaries):
        self.mover.save(Transfer("saver", ids, list(boundaries), blocks))
        self.mover.flush()

    def load(self, ids, blocks, boundary, present=0, **options):
        self.mover.load(Transfer("loader", ids, [boundary], blocks, present_tokens=present,
                                 **options))
        done, failed = set(), set()
        while self.mover._loads and not done:
            done, failed = self.mover.results([], idle=True)
        self.assertEqual(done, {"loader"})
        return not failed

    def test_load_restores_pages_and_window_tails(self):
        ids = prompt(96, 1)
        here = [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12], [13, 14, 15, 16, 17, 18]]
        there = [[one + 20 for one in group] for group in here]
        self.save(ids, here, 96)
        before = [layer.clone() for layer in self.memory]
        self.assertTrue(self.load(ids, there, 96))
        for layer, group in enumerate(GROUPS):
            for place, (one, other) in enumerate(zip(here[group], there[group], strict=True)):
                came = LAYOUT.layer_types[layer] == "g" or (place + 1) * BLOCK > 96 - (WINDOW - 1)
                self.assertTrue(torch.equal(self.memory[layer][other],
                                            before[layer][one if came else other]))

    def test_load_skips_present_blocks(self):
        ids = prompt(96, 2)
        blocks = [[1, 2, 3, 4, 5, 6]] * 3
        self.save(ids, blocks, 96)
        for layer in self.memory:
            layer.fill_(7)
        self.assertTrue(self.load(ids, blocks, 96, present=80))
        for layer in self.memory:
            self.assertTrue(bool((layer[1:6] == 7).all()))
            self.assertFalse(bool((layer[6] == 7).all()))

    def test_save_copies_pages_immediately(self):
        ids = prompt(32, 3)
        self.store.answering.clear()
        kept = self.memory[2][1].clone()
        self.mover.save(Transfer("saver", ids, [32], [[1, 2]] * 3))
        self.memory[2].zero_()  # simulates the next step, which overwrites the blocks
        self.store.answering.set()
        self.mover.flush()
        self.assertTrue(self.load(ids, [[1, 2]] * 3, 32))
        self.assertTrue(torch.equal(self.memory[2][1], kept))

    def test_save_publishes_its_hints(self):
        hints = {"keep_s": 30, "priority": 2}
        self.mover.save(Transfer("saver", prompt(32, 5), [32], [[1, 2]] * 3, hints=hints))
        self.mover.flush()
        self.assertEqual(self.store.hints, hints)

    def test_load_republishes_its_hints(self):
        ids, hints = prompt(32, 6), {"keep_s": 30}
        self.save(ids, [[1, 2]] * 3, 32)
        self.assertTrue(self.load(ids, [[1, 2]] * 3, 32))
        self.mover.flush()
        self.assertEqual(self.store.calls.count("publish"), 1, "without hints it is left alone")
        self.assertTrue(self.load(ids, [[1, 2]] * 3, 32, hints=hints))
        self.mover.close()
        self.assertEqual((self.store.calls.count("publish"), self.store.hints), (2, hints))

    def test_missed_load_is_reported_failed(self):
        ids = prompt(32, 4)
        with self.assertLogs("hearth_cache", "WARNING"):
            self.assertFalse(self.load(ids, [[1, 2]] * 3, 32))
        self.save(ids, [[1, 2]] * 3, 32)
        self.assertNotIn("publish", self.store.calls, "the store is left alone")
        self.mover.quiet.end()
        self.store.error = ValueError("a mistake of ours")
        with self.assertLogs("hearth_cache", "ERROR"):
            self.assertFalse(self.load(ids, [[1, 2]] * 3, 32))

    def test_saves_after_failed_save_are_skipped(self):
        self.store.answering.clear()
        self.store.error = Unavailable("gone")
        for number in range(3):
            self.mover.save(Transfer("saver", prompt(32, number), [32], [[1, 2]] * 3))
        with self.assertLogs("hearth_cache", "WARNING"):
            self.store.answering.set()
            self.mover.flush()
        self.assertEqual((self.store.calls, self.mover.saves_left_out), (["publish"], 2))

    def test_earlier_epoch_transfers_are_dropped(self):
        ids, blocks = prompt(32, 7), [[1, 2]] * 3
        self.save(ids, blocks, 32)
        self.store.answering.clear()
        self.mover.load(Transfer("under way", ids, [32], blocks))
        self.mover.save(Transfer("saver", prompt(32, 8), [32], blocks))
        self.mover.save(Transfer("queued", prompt(32, 9), [32], blocks))
        self.mover.begin(Step([Transfer("planned before", ids, [32], blocks),
                               Transfer("of now", ids, [32], blocks, epoch=5)], epoch=5))
        self.store.answering.set()
        self.mover.save(Transfer("saver", prompt(32, 10), [32], blocks, epoch=5))
        self.mover.flush()
        results = [set(), set()]
        while self.mover._loads:
            for all_, some in zip(results, self.mover.results([], idle=True), strict=True):
                all_ |= some
        self.assertEqual(results, [{"under way", "planned before", "of now"},
                                   {"under way", "planned before"}])
        self.assertNotIn(tuple(prompt(32, 9)), self.store.kept)
        self.assertEqual((self.store.epochs[-1], self.mover.saves_left_out >= 1), (5, True))

    def test_saves_over_staging_limit_are_skipped(self):
        self.store.answering.clear()
        self.addCleanup(self.store.answering.set)
        limit = self.mover.save.__globals__
        with unittest.mock.patch.dict(limit, STAGED_BYTES_MAX=PAGE * 8):
            for number in range(3):
                self.mover.save(Transfer("saver", prompt(32, number), [32], [[1, 2]] * 3))
        self.assertEqual(self.mover.saves_left_out, 2)


class PageViews(unittest.TestCase):
    def test_noncontiguous_pages_are_refused(self):
        whole = torch.arange(6 * 2 * 8 * 4, dtype=torch.float32).reshape(6, 2, 8, 4)
        self.assertTrue(torch.equal(pages_of(whole, "x", 6, 256)[2],
                                    whole[2].flatten().view(torch.uint8)))
        self.assertEqual(pages_of(whole, "x", 3, 512).shape, (3, 512))  # two kernel blocks
        apart = torch.zeros(2, 6, 8, 4).transpose(0, 1)
        for cache, blocks, page in ((apart, 6, 256), (whole, 4, 256), (whole, 6, 128)):
            with self.assertRaisesRegex(ValueError, "layer x"):
                pages_of(cache, "x", blocks, page)


class StandIn:
    """A fake of torch.cuda that logs the order of its calls."""

    def __init__(self):
        self.log, self.made = [], 0
        self.engine = self.Stream("engine")

    def Stream(self, name=None):  # noqa: N802  (torch's name)
        self.made += 1
        name = name or f"copies{self.made - 1}"
        log = self.log

        def record_event():
            log.append(f"{name} recorded")
            return types.SimpleNamespace(
                name=name, synchronize=lambda: log.append(f"waited for {name}"))
        return types.SimpleNamespace(
            name=name, record_event=record_event,
            wait_event=lambda event: log.append(f"{name} behind {event.name}"),
            synchronize=lambda: log.append(f"waited for {name}"))

    def current_stream(self):
        return self.engine

    @contextlib.contextmanager
    def stream(self, stream):
        self.log.append(f"on {stream.name}")
        yield


class DevicePageOrder(unittest.TestCase):
    def setUp(self):
        self.api = StandIn()
        self.memory = [torch.randint(0, 256, (8, PAGE), dtype=torch.uint8) for _ in range(2)]
        self.pages = DevicePages(self.memory, self.api, pinned=False)

    def test_reading_pages_waits_for_engine_stream(self):
        self.pages.take(0, [3, 1])
        self.pages.take(1, [2])
        wait = self.pages.taken()
        copying = self.api.log[:]
        self.assertEqual(copying, ["engine recorded", "copies1 behind engine", "on copies1",
                                   "on copies1", "copies1 recorded", "engine behind copies1"])
        taken = wait()
        self.assertEqual(self.api.log[len(copying):], ["waited for copies1"])
        self.assertEqual(bytes(taken[0][0]), bytes(self.memory[0][3].numpy()))
        self.assertEqual(bytes(taken[1][0]), bytes(self.memory[1][2].numpy()))

    def test_writer_waits_for_engine_stream(self):
        writer = self.pages.writer()
        self.assertEqual(self.api.log, ["engine recorded", "copies2 behind engine"])
        writer.put(1, 5, bytes(range(PAGE)))
        writer.finish()
        self.assertEqual(self.api.log[2:], ["on copies2", "waited for copies2"])
        self.assertEqual(bytes(self.memory[1][5].numpy()), bytes(range(PAGE)))


if __name__ == "__main__":
    python_support.main()
