"""Pages of a paged engine and a store: what is asked, loaded and saved, and when. vllm.py binds
this to vLLM; here nothing of vLLM is needed.

A `Planner` lives where requests are scheduled, a `Mover` where the pages are, in the memory of the
process (`HostPages`) or of a device (`DevicePages`). A load is of all that a boundary needs or of
nothing. A save takes its pages before the step that computed them is over: the next one may free
them.
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

torch: Any = importlib.import_module("torch")  # by name, as in transformers.py
_LOG = logging.getLogger("hearth_cache")

PLAN_DEADLINE_S = 1.0
SAVE_PATIENCE = 5  # times that of a load: nobody waits for it
IDLE_S = 0.005  # an engine that has nothing to compute waits so long for a transfer
STAGED_BYTES_MAX = 1 << 30  # of saves under way; those beyond are left out
KNOWN_REQUESTS_MAX = 1024
THREADS = 4
HINT = "hearth.keep"  # the type of an action of kv_hints
HINTS = {"keep_s": (0, 3600), "priority": (-8, 8)}  # what the store takes of each

Blocks = Sequence[Sequence[int]]  # of a request, by the engine's groups of layers


@dataclass
class Transfer:
    """Pages of a request that are loaded or saved. `present_tokens`: of a load, what is there
    already, and may be shared with others. `hints`: for Store.publish(). `epoch`: the planner's,
    when the transfer was planned."""

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
    """What a step of the engine has to transfer. `idle`: it computes nothing. `epoch`: the
    planner's, by which movers learn that a new epoch began."""

    loads: list[Transfer] = field(default_factory=list[Transfer])
    saves: list[Transfer] = field(default_factory=list[Transfer])
    idle: bool = False
    epoch: int = 0


@dataclass
class _Request:
    token_ids: list[int]
    salt: str
    boundaries: list[int]  # that are saved when they are passed
    hints: Mapping[str, Any]
    asked: Optional[Future[int]] = None  # None: it is computed


@functools.lru_cache(maxsize=64)
def say_ignored(field: str, wanted: str, got: str) -> None:
    """Logs a kind of wrong hint, once in the process: each request may bring it."""
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
    """keep_s and priority of a vLLM request, from its kv_transfer_params and from the actions of
    its kv_hints. vLLM passes on what a caller sent, whatever its type, and an error here would end
    the scheduler's thread: a value of a wrong type is ignored. A value out of the store's range is
    cut, since the store would refuse the save."""
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
    """`prefixes_of`: a prompt with its salt in an epoch, as each of the engine's ranks keeps it.
    Epoch 0 is that of the weights that the engine loaded; its pages may be shared. Thread safety:
    none."""

    def __init__(self, store: Store, block_tokens: int,
                 prefixes_of: Callable[[Sequence[int], str, int], list[Prefix]]) -> None:
        self._store, self._block_tokens, self._prefixes_of = store, block_tokens, prefixes_of
        self._epoch = 0
        self._requests: dict[str, _Request] = {}
        self._loads: list[Transfer] = []
        self._asking = ThreadPoolExecutor(THREADS, "hearth-plan")
        self.quiet = StoreBackoff()

    def begin_epoch(self) -> None:
        """Call when the weights change. From now on nothing that was stored before is found, and
        no other process finds what is saved. The requests so far are computed and not saved: part
        of their pages may be of the old weights. Loads planned so far are sent and fail."""
        self._epoch = secrets.randbits(63) or 1
        self._requests.clear()

    def begin(self, request_id: str, token_ids: Sequence[int], salt: str = "", *,
              reads: bool = True, hints: Optional[Mapping[str, Any]] = None) -> None:
        """One token is always left to compute."""
        boundary = (len(token_ids) - 1) // self._block_tokens * self._block_tokens
        if boundary <= 0:
            return
        request = _Request(list(token_ids), salt, [boundary], hints or {})
        self._requests[request_id] = request
        if reads and not self.quiet:
            request.asked = self._asking.submit(self._ask, request, boundary, self._epoch)

    def _ask(self, request: _Request, boundary: int, epoch: int) -> int:
        """The restore point; and what other prompts begin with alike becomes one, too."""
        with self.quiet.call(Exception):  # the scheduler's thread takes the result
            usable = matched = boundary
            for prefix in self._prefixes_of(request.token_ids[:boundary + 1], request.salt,
                                            epoch):
                with self._store.lease(prefix, lease_s=0, deadline_s=PLAN_DEADLINE_S) as turn:
                    usable = min(usable, turn.usable_tokens)
                    matched = min(matched, turn.answer.matched_tokens)
            # A store may say anything; only whole blocks can be placed.
            usable -= usable % self._block_tokens
            alike = matched - matched % self._block_tokens
            if usable < alike < boundary:
                request.boundaries = [alike, boundary]
            return usable
        return 0

    def matched(self, request_id: str, computed: int) -> tuple[Optional[int], bool]:
        """Tokens beyond `computed` to load; None: not known yet."""
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
        """`scheduled`: each request with the tokens that are computed before and after."""
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
        """They are computed; who asks again for each would ask for ever."""
        for request_id in request_ids:
            if request_id in self._requests:
                self._requests[request_id].asked = None

    def end(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    def close(self) -> None:
        self._asking.shutdown(wait=False, cancel_futures=True)


class HostPages:
    """Pages in a process's own memory. `pages`: of each layer [block, byte]. Thread safety: none;
    a writer() is for one other thread."""

    def __init__(self, pages: Sequence[Any]) -> None:
        self._pages: list[np.ndarray[Any, np.dtype[np.uint8]]] = [one.numpy() for one in pages]
        self._taken: dict[int, Any] = {}

    def take(self, layer: int, blocks: list[int]) -> None:
        """Begins to copy pages out."""
        self._taken[layer] = self._pages[layer][blocks]

    def taken(self) -> Callable[[], dict[int, Any]]:
        """Ends a series of take(): waits for the copies and gives them, an array a layer. From now
        on the engine may write the pages."""
        taken, self._taken = self._taken, {}
        return lambda: taken

    def writer(self) -> HostPages:
        """Puts bytes into pages that the engine does not read yet."""
        return self

    def put(self, layer: int, block: int, data: Bytes) -> None:
        self._pages[layer][block] = np.frombuffer(data, np.uint8)

    def finish(self) -> None:
        """Waits until what was put is written."""


class DevicePages:
    """Pages in a device's memory, copied through pinned buffers on streams of their own. `api`:
    torch.cuda or what is like it. Copies begin behind what the engine's stream has been given; what
    that is given later begins behind the copies of a take."""

    def __init__(self, pages: Sequence[Any], api: Any, *, pinned: bool = True) -> None:
        self._pages, self._api, self._pinned = pages, api, pinned
        self._stream = api.Stream()
        self._kept: dict[Any, Any] = {}  # until they are copied

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
        """Made by the engine's thread; used by one other."""
        made = DevicePages(self._pages, self._api, pinned=self._pinned)
        made._begin()  # until now the engine may read what was in these blocks before
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
    """A layer's pages as [block, byte]. Blocks of the kernel may be parts of the manager's."""
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
    """`groups`: of each layer the engine's group, whose blocks it uses. `prefix_of`: a prompt with
    its salt in an epoch. Thread safety: none; it is the engine's thread's."""

    def __init__(self, store: Store, layout: PageLayout, groups: Sequence[int], pages: AnyPages,
                 prefix_of: Callable[[Sequence[int], str, int], Prefix]) -> None:
        self._store, self._layout, self._groups = store, layout, groups
        self._pages, self._prefix_of = pages, prefix_of
        self._loading = ThreadPoolExecutor(THREADS, "hearth-load")
        self._saving = ThreadPoolExecutor(1, "hearth-save")
        self._loads: dict[Future[Optional[Fetched]], Transfer] = {}
        self._saves: dict[Future[None], int] = {}  # under way, with their bytes
        self._known: dict[str, Fetched] = {}  # of running requests, what the store has
        self._epoch = 0
        self.saves_left_out = 0
        self.quiet = StoreBackoff()

    def begin(self, step: Step) -> None:
        """Call first in each step. If the step begins an epoch, loads under way will fail, and
        saves that wait are left out: it is not known which weights computed them."""
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

        with self.quiet.call(Exception):  # whatever it is: the engine must hear of it
            if load.epoch != self._epoch:
                return None
            try:
                fetched = self._store.fetch(
                    self._prefix_of(load.token_ids, load.salt, load.epoch),
                    above_tokens=boundary - 1, max_tokens=boundary, place=place,
                    deadline_s=load_deadline_s(self._layout.needed_bytes(boundary)))
            finally:
                writer.finish()  # failed or not: the engine gets its blocks back
            if fetched.usable_tokens != boundary:
                raise NotFound(
                    f"{boundary} planned tokens are no longer stored: {fetched.miss_reason}")
            if load.hints:
                self._saving.submit(self._hint, load, fetched)
            return fetched
        return None

    def _hint(self, load: Transfer, known: Fetched) -> None:
        """What is stored already has the hints, too: it is published again without its bytes."""
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
        # Judged again here: it was queued, and an engine that ends would wait for each.
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
        """Requests whose load is over, and those of them whose load failed."""
        for request_id in finished:
            self._known.pop(request_id, None)
        if idle:
            wait(self._loads, IDLE_S, FIRST_COMPLETED)
        over: dict[str, Optional[Fetched]] = {}
        for one in [one for one in self._loads if one.done()]:
            load = self._loads.pop(one)
            over[load.request_id] = one.result() if load.epoch == self._epoch else None
        self._known.update((name, fetched) for name, fetched in over.items() if fetched)
        while len(self._known) > KNOWN_REQUESTS_MAX:  # of some the end was missed
            self._known.pop(next(iter(self._known)))
        return set(over), {name for name, fetched in over.items() if not fetched}

    def flush(self) -> None:
        """Waits for the saves so far."""
        wait(self._saves)

    def close(self) -> None:
        self._loading.shutdown()
        self._saving.shutdown()
