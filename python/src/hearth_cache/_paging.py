"""Loads and saves the KV pages of a paged engine. vllm.py connects this file to vLLM; nothing here
imports vLLM.

A `Planner` runs in the engine's scheduler and decides what is loaded and saved. A `Mover` runs in a
worker of the engine and copies pages, in host memory (`HostPages`) or device memory
(`DevicePages`). A load brings all pages that a boundary needs, or fails. A save copies its pages
before the step that computed them ends, because the next step may free them.
"""

from __future__ import annotations

import functools
import importlib
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Optional, Union, cast

import numpy as np

from hearth_cache._engines import StoreBackoff, load_deadline_s
from hearth_cache._exchange import Bytes, Fetched, Prefix
from hearth_cache.errors import NotFound
from hearth_cache.layout import ObjectId, PageLayout
from hearth_cache.store import Store

# Imported by name: strict type checkers do not know its types.
torch: Any = importlib.import_module("torch")
_LOG = logging.getLogger("hearth_cache")

PLAN_DEADLINE_S = 1.0
# A save may take this many times as long as a load, because no request waits for a save.
SAVE_PATIENCE = 5
IDLE_S = 0.005  # seconds that an engine without work waits for a transfer
# Host memory for pages of unfinished saves. Saves that would exceed it are skipped.
STAGED_BYTES_MAX = 1 << 30
KNOWN_REQUESTS_MAX = 1024
THREADS = 4
HINT = "hearth.keep"  # action_type in kv_hints that addresses Hearth
HINTS = {"keep_s": (0, 3600), "priority": (-8, 8)}  # minimum and maximum that a store accepts

# Block numbers of a request: [layer group][position in the prompt].
Blocks = Sequence[Sequence[int]]


@dataclass
class Transfer:
    """A load or a save of a request's pages. `present_tokens` (loads only): the engine already has
    the pages of these first tokens; they are not written, because other requests may share them.
    `hints`: options of Store.publish(). `epoch`: the planner's epoch when the transfer was
    planned."""

    request_id: str
    token_ids: list[int]
    boundaries: list[int]
    blocks: Blocks
    salt: str = ""
    present_tokens: int = 0
    hints: Mapping[str, Any] = field(default_factory=dict[str, Any])
    epoch: int = 0


@dataclass
class Step:
    """The transfers of one engine step. `idle`: the step computes nothing. `epoch`: the planner's
    epoch, from which movers learn that a new epoch has begun."""

    loads: list[Transfer] = field(default_factory=list[Transfer])
    saves: list[Transfer] = field(default_factory=list[Transfer])
    idle: bool = False
    epoch: int = 0


@dataclass
class _Request:
    token_ids: list[int]
    salt: str
    boundaries: list[int]  # a save is planned when computation reaches such a position
    hints: Mapping[str, Any]
    asked: Optional[Future[int]] = None  # tokens that can be restored; None: the store is not asked


@functools.lru_cache(maxsize=64)
def say_ignored(field: str, wanted: str, got: str) -> None:
    """Logs that a request's hint is ignored, once for each combination of arguments."""
    _LOG.warning("a request's hint is ignored: %s must be %s; got %s", field, wanted, got)


def _mapping_of(value: Any, field: str) -> Mapping[Any, Any]:
    if isinstance(value, Mapping):
        return cast("Mapping[object, Any]", value)
    if value is not None:
        say_ignored(field, "a mapping", type(value).__name__)
    return {}


def _actions_of(request: Any) -> Iterable[Any]:
    actions: Any = getattr(getattr(request, "kv_hints", None), "actions", None)
    if isinstance(actions, (list, tuple)):
        return cast("Iterable[Any]", actions)
    if actions is not None:
        say_ignored("kv_hints.actions", "a list", type(actions).__name__)
    return ()


def hints_of(request: Any) -> dict[str, Any]:
    """Returns keep_s and priority of a vLLM request, from its kv_transfer_params and from the
    actions of its kv_hints. vLLM does not check the types of these values, and an exception here
    would end the scheduler's thread, so a value of a wrong type is ignored. A value outside the
    store's range is clamped, because the store would refuse the save."""
    told = dict(_mapping_of(request.kv_transfer_params, "kv_transfer_params"))
    for action in _actions_of(request):
        if getattr(action, "action_type", None) == HINT:
            told.update(_mapping_of(getattr(action, "payload", None), f"the payload of {HINT}"))
    hints: dict[str, Any] = {}
    for name, (least, most) in HINTS.items():
        value = told.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            hints[name] = max(least, min(value, most))
        elif value is not None:
            say_ignored(name, "an integer", type(value).__name__)
    return hints


class Planner:
    """Plans the loads and saves of an engine. `prefixes_of(token_ids, salt, epoch)` returns the
    prompt's prefix for each rank of the engine. In epoch 0 the engine has the weights that it
    loaded, so it may share pages with other engines. Thread safety: none."""

    def __init__(self, store: Store, block_tokens: int,
                 prefixes_of: Callable[[Sequence[int], str, int], list[Prefix]]) -> None:
        self._store, self._block_tokens, self._prefixes_of = store, block_tokens, prefixes_of
        self._epoch = 0
        self._requests: dict[str, _Request] = {}
        self._loads: list[Transfer] = []
        self._asking = ThreadPoolExecutor(THREADS, "hearth-plan")
        self.quiet = StoreBackoff()

    def begin_epoch(self) -> None:
        """Call when the weights change. After the call, no process restores pages that another
        epoch saved. Running requests are computed but not saved, because some of their pages may
        come from the old weights. Loads that are already planned fail in the mover."""
        self._epoch = secrets.randbits(63) or 1
        self._requests.clear()

    def begin(self, request_id: str, token_ids: Sequence[int], salt: str = "", *,
              reads: bool = True, hints: Optional[Mapping[str, Any]] = None) -> None:
        """Adds a request and asks the store about its prompt, in the background. The boundary to
        restore is below the end of the prompt, because the engine must compute at least one
        token."""
        boundary = (len(token_ids) - 1) // self._block_tokens * self._block_tokens
        if boundary <= 0:
            return
        request = _Request(list(token_ids), salt, [boundary], hints or {})
        self._requests[request_id] = request
        if reads and not self.quiet:
            request.asked = self._asking.submit(self._ask, request, boundary, self._epoch)

    def _ask(self, request: _Request, boundary: int, epoch: int) -> int:
        """Returns how many tokens can be restored. If a longer prefix of the prompt is shared with
        other prompts, the last block boundary in it is saved, too."""
        # An exception would be raised again by result(), in the scheduler's thread.
        with self.quiet.call(Exception):
            usable = matched = boundary
            for prefix in self._prefixes_of(request.token_ids[:boundary + 1], request.salt,
                                            epoch):
                with self._store.lease(prefix, lease_s=0, deadline_s=PLAN_DEADLINE_S) as turn:
                    usable = min(usable, turn.usable_tokens)
                    matched = min(matched, turn.answer.matched_tokens)
            # The store's answer may not be a multiple of the block size, but only whole blocks can
            # be loaded.
            usable -= usable % self._block_tokens
            alike = matched - matched % self._block_tokens
            if usable < alike < boundary:
                request.boundaries = [alike, boundary]
            return usable
        return 0

    def matched(self, request_id: str, computed: int) -> tuple[Optional[int], bool]:
        """Returns (tokens to load in addition to `computed`, whether the load is asynchronous). The
        first value is None while the store has not answered."""
        request = self._requests.get(request_id)
        if request is None or request.asked is None:
            return 0, False
        if not request.asked.done():
            return None, False
        more = request.asked.result() - computed
        return (more, True) if more > 0 else (0, False)

    def allocated(self, request_id: str, blocks: Blocks, tokens: int) -> None:
        request = self._requests.get(request_id)
        if tokens <= 0 or request is None or request.asked is None:
            return
        usable = request.asked.result()
        self._loads.append(Transfer(request_id, request.token_ids[:usable], [usable], blocks,
                                    request.salt, usable - tokens, request.hints, self._epoch))

    def step(self, scheduled: Iterable[tuple[str, int, int]],
             blocks_of: Callable[[str], Optional[Blocks]]) -> Step:
        """Plans the transfers of a step. `scheduled`: for each request in the step (request id,
        computed tokens before the step, computed tokens after the step)."""
        step, self._loads = Step(self._loads, [], True, self._epoch), []
        for request_id, begin, end in scheduled:
            step.idle = False
            request = self._requests.get(request_id)
            if request is None:
                continue
            passed = [one for one in request.boundaries if begin < one <= end]
            blocks = blocks_of(request_id) if passed and not self.quiet else None
            if blocks is not None:
                step.saves.append(Transfer(request_id, request.token_ids[:passed[-1]], passed,
                                           blocks, request.salt, hints=request.hints,
                                           epoch=self._epoch))
        if step.idle and not step.loads:
            waiting = [one.asked for one in self._requests.values()
                       if one.asked is not None and not one.asked.done()]
            wait(waiting, IDLE_S, FIRST_COMPLETED)
        return step

    def failed(self, request_ids: Iterable[str]) -> None:
        """Call when the loads of these requests have failed: the requests are computed. The store
        is not asked again, because the failure could repeat without end."""
        for request_id in request_ids:
            if request_id in self._requests:
                self._requests[request_id].asked = None

    def end(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    def close(self) -> None:
        self._asking.shutdown(wait=False, cancel_futures=True)


class HostPages:
    """Pages in host memory. `pages`: for each layer an array [block, byte]. Thread safety: none,
    except that one other thread may use a writer()."""

    def __init__(self, pages: Sequence[Any]) -> None:
        self._pages: list[np.ndarray[Any, np.dtype[np.uint8]]] = [one.numpy() for one in pages]
        self._taken: dict[int, Any] = {}

    def take(self, layer: int, blocks: list[int]) -> None:
        """Begins to copy these pages of a layer."""
        self._taken[layer] = self._pages[layer][blocks]

    def taken(self) -> Callable[[], dict[int, Any]]:
        """Call after the last take(). Returns a function that waits for the copies and returns
        {layer: array [block, byte]}. The engine may write the pages after taken() has returned."""
        taken, self._taken = self._taken, {}
        return lambda: taken

    def writer(self) -> HostPages:
        """Returns an object that writes pages into blocks that the engine does not read yet. put()
        writes one page; finish() waits for all pages."""
        return self

    def put(self, layer: int, block: int, data: Bytes) -> None:
        self._pages[layer][block] = np.frombuffer(data, np.uint8)

    def finish(self) -> None:
        """Waits until the pages of all put() calls are written."""


class DevicePages:
    """Pages in device memory, copied through pinned buffers on a stream of this object. `api`:
    torch.cuda or a module with its interface. Copies wait for the work that is already on the
    engine's stream. After taken(), later work on the engine's stream waits for the copies."""

    def __init__(self, pages: Sequence[Any], api: Any, *, pinned: bool = True) -> None:
        self._pages, self._api, self._pinned = pages, api, pinned
        self._stream = api.Stream()
        self._kept: dict[Any, Any] = {}  # host buffers; must live until their copies are done

    def _begin(self) -> None:
        self._stream.wait_event(self._api.current_stream().record_event())

    def _buffer(self, *shape: int) -> Any:
        return torch.empty(shape, dtype=torch.uint8, pin_memory=self._pinned)

    def take(self, layer: int, blocks: list[int]) -> None:
        if not self._kept:
            self._begin()
        kept = self._kept[layer] = self._buffer(len(blocks), self._pages[layer].shape[1])
        with self._api.stream(self._stream):
            for row, block in enumerate(blocks):
                kept[row].copy_(self._pages[layer][block], non_blocking=True)

    def taken(self) -> Callable[[], dict[int, Any]]:
        taken, self._kept = self._kept, {}
        copied = self._stream.record_event()
        self._api.current_stream().wait_event(copied)

        def wait() -> dict[int, Any]:
            copied.synchronize()
            return {layer: kept.numpy() for layer, kept in taken.items()}
        return wait

    def writer(self) -> DevicePages:
        """Call on the engine's thread. One other thread may use the result."""
        made = DevicePages(self._pages, self._api, pinned=self._pinned)
        made._begin()  # earlier work on the engine's stream may still read these blocks
        return made

    def put(self, layer: int, block: int, data: Bytes) -> None:
        kept = self._kept[layer, block] = self._buffer(len(data))
        kept.numpy()[:] = np.frombuffer(data, np.uint8)
        with self._api.stream(self._stream):
            self._pages[layer][block].copy_(kept, non_blocking=True)

    def finish(self) -> None:
        self._stream.synchronize()
        self._kept = {}


def pages_of(cache: Any, name: str, blocks: int, page_bytes: int) -> Any:
    """Returns a view of a layer's cache as [block, byte]. A block of the cache manager may consist
    of several consecutive blocks of the attention kernel."""
    parts, odd = divmod(cache.shape[0], blocks)
    page = cache[:1].numel() * parts
    if odd or not cache[0].is_contiguous() or (parts > 1 and not cache[:parts].is_contiguous()) \
            or page * cache.element_size() != page_bytes:
        raise ValueError(f"layer {name}: its cache must have {blocks} contiguous pages of "
                         f"{page_bytes} bytes; got shape {tuple(cache.shape)} and strides "
                         f"{cache.stride()}")
    return cache.as_strided((blocks, page), (cache.stride(0) * parts, 1)).view(torch.uint8)


AnyPages = Union[HostPages, DevicePages]


class Mover:
    """Loads and saves pages in a worker of the engine. `groups`: for each layer the number of the
    engine's layer group; the layer uses that group's block numbers. `prefix_of(token_ids, salt,
    epoch)` returns the prompt's prefix for this rank. Thread safety: none; only the engine's thread
    calls it."""

    def __init__(self, store: Store, layout: PageLayout, groups: Sequence[int], pages: AnyPages,
                 prefix_of: Callable[[Sequence[int], str, int], Prefix]) -> None:
        self._store, self._layout, self._groups = store, layout, groups
        self._pages, self._prefix_of = pages, prefix_of
        self._loading = ThreadPoolExecutor(THREADS, "hearth-load")
        self._saving = ThreadPoolExecutor(1, "hearth-save")
        self._loads: dict[Future[Optional[Fetched]], Transfer] = {}
        # Unfinished saves: size of their staged pages in bytes.
        self._saves: dict[Future[None], int] = {}
        # Request id: the result of its load, whose objects are in the store.
        self._known: dict[str, Fetched] = {}
        self._epoch = 0
        self.saves_left_out = 0
        self.quiet = StoreBackoff()

    def begin(self, step: Step) -> None:
        """Call first in each step. If the step has a new epoch, unfinished loads fail and queued
        saves are skipped, because their pages may come from other weights."""
        if step.epoch != self._epoch:
            self._epoch = step.epoch
            self._known.clear()
        for load in step.loads:
            self.load(load)

    def load(self, load: Transfer) -> None:
        begun = self._loading.submit(self._load, load, self._pages.writer())
        self._loads[begun] = load

    def _load(self, load: Transfer, writer: AnyPages) -> Optional[Fetched]:
        boundary, chunk = load.boundaries[0], self._layout.chunk_tokens

        def place(fetched: Fetched, one: ObjectId, layer: int, data: Bytes) -> None:
            if one.begin >= load.present_tokens:
                writer.put(layer, load.blocks[self._groups[layer]][one.begin // chunk], data)

        # Any error ends the load; the engine must learn that it failed.
        with self.quiet.call(Exception):
            if load.epoch != self._epoch:
                return None
            try:
                fetched = self._store.fetch(
                    self._prefix_of(load.token_ids, load.salt, load.epoch),
                    above_tokens=boundary - 1, max_tokens=boundary, place=place,
                    deadline_s=load_deadline_s(self._layout.needed_bytes(boundary)))
            finally:
                writer.finish()  # also after a failure: later the engine reuses these blocks
            if fetched.usable_tokens != boundary:
                raise NotFound(
                    f"{boundary} planned tokens are no longer stored: {fetched.miss_reason}")
            if load.hints:
                self._saving.submit(self._hint, load, fetched)
            return fetched
        return None

    def _hint(self, load: Transfer, known: Fetched) -> None:
        """Gives the request's hints to the restore point that was loaded, by publishing it again
        without bytes."""
        with self.quiet.call(Exception):
            self._store.publish(self._prefix_of(load.token_ids, load.salt, load.epoch),
                                load.boundaries, lambda one, layer: b"", stored=known,
                                **load.hints, deadline_s=load_deadline_s(0))

    def save(self, save: Transfer) -> None:
        layout, known = self._layout, self._known.get(save.request_id, Fetched())
        present = set(known.objects)
        begins = [sorted({one.begin for boundary in save.boundaries
                          for one in layout.needed_objects(boundary)
                          if one.group == group and one not in present})
                  for group in (0, 1)]
        size = sum(len(begins[group]) * len(layout.layers_of(group)) for group in (0, 1)) \
            * layout.page_bytes
        self._saves = {one: staged for one, staged in self._saves.items() if not one.done()}
        if self.quiet or sum(self._saves.values()) + size > STAGED_BYTES_MAX:
            self.saves_left_out += 1
            return
        for group in (0, 1):
            for layer in layout.layers_of(group):
                blocks = save.blocks[self._groups[layer]]
                self._pages.take(layer, [blocks[one // layout.chunk_tokens]
                                         for one in begins[group]])
        begun = self._saving.submit(self._save, save, begins, self._pages.taken(), size, known)
        self._saves[begun] = size

    def _save(self, save: Transfer, begins: list[list[int]],
              taken: Callable[[], dict[int, Any]], size: int, known: Fetched) -> None:
        # Checks again, because the save was queued: if the store has failed since, flush() would
        # wait for each queued save to fail.
        if self.quiet or save.epoch != self._epoch:
            self.saves_left_out += 1
            return
        with self.quiet.call(Exception):
            pages = taken()
            rows = [{one: row for row, one in enumerate(each)} for each in begins]

            def slice_of(one: ObjectId, layer: int) -> Bytes:
                return memoryview(pages[layer][rows[one.group][one.begin]])

            self._store.publish(self._prefix_of(save.token_ids, save.salt, save.epoch),
                                save.boundaries, slice_of, stored=known, **save.hints,
                                deadline_s=SAVE_PATIENCE * load_deadline_s(size))

    def results(self, finished: Iterable[str], idle: bool) -> tuple[set[str], set[str]]:
        """Returns (ids of requests whose load has ended, ids of requests whose load has failed).
        `finished`: requests that have ended. If `idle`, waits up to IDLE_S for a load."""
        for request_id in finished:
            self._known.pop(request_id, None)
        if idle:
            wait(self._loads, IDLE_S, FIRST_COMPLETED)
        over: dict[str, Optional[Fetched]] = {}
        for one in [one for one in self._loads if one.done()]:
            load = self._loads.pop(one)
            over[load.request_id] = one.result() if load.epoch == self._epoch else None
        self._known.update((name, fetched) for name, fetched in over.items() if fetched)
        while len(self._known) > KNOWN_REQUESTS_MAX:  # vLLM may not report the end of a request
            self._known.pop(next(iter(self._known)))
        return set(over), {name for name, fetched in over.items() if not fetched}

    def flush(self) -> None:
        """Waits for all saves that have begun."""
        wait(self._saves)

    def close(self) -> None:
        self._loading.shutdown()
        self._saving.shutdown()
