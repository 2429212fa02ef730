"""The memory of an engine's pages, on the host and on a device."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hearth_cache._exchange import Bytes

torch: Any = importlib.import_module("torch")  # by name, as in transformers.py


class HostPages:
    """Pages in a process's own memory. `pages`: of each layer [block, byte]."""

    def __init__(self, pages: Sequence[Any]) -> None:
        self._pages: list[np.ndarray[Any, np.dtype[np.uint8]]] = [one.numpy() for one in pages]
        self._taken: dict[int, Any] = {}

    def take(self, layer: int, blocks: list[int]) -> None:
        self._taken[layer] = self._pages[layer][blocks]

    def taken(self) -> Callable[[], dict[int, Any]]:
        taken, self._taken = self._taken, {}
        return lambda: taken

    def writer(self) -> HostPages:
        return self

    def put(self, layer: int, block: int, data: Bytes) -> None:
        self._pages[layer][block] = np.frombuffer(data, np.uint8)

    def finish(self) -> None:
        pass


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
        raise ValueError(f"layer {name}: its cache of shape {tuple(cache.shape)} and strides "
                         f"{cache.stride()} does not have {blocks} pages of {page_bytes} bytes, "
                         "each in one piece")
    return cache.as_strided((blocks, page), (cache.stride(0) * parts, 1)).view(torch.uint8)
