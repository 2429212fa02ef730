"""Worker.caches: prefixes that a caller keeps by name, as providers' context caches are used.

A cache is a restore point of the store that the worker publishes to; making one is a Prefill of its
prompt with a breakpoint at the end. Its id is the restore point's, in hexadecimal digits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional, cast

from typing_extensions import Unpack

from hearth_cache.answers import tier_name
from hearth_cache.errors import HearthError, NotFound
from hearth_cache.prompts import Durability, Message, Prompt, PromptOptions
from hearth_cache.v1 import cache_store_pb2, inference_pb2

if TYPE_CHECKING:
    from hearth_cache.store import AsyncStore, Store
    from hearth_cache.worker import AsyncWorker, Worker


@dataclass(frozen=True)
class Cache:
    id: str
    tokens: int
    bytes: int
    tier: str
    pinned: bool
    hits: int
    expires_in_s: Optional[float]  # None: never


CacheList = list[Cache]


def _cache_of(info: cache_store_pb2.RestorePointInfo) -> Cache:
    return Cache(info.restore_point_id.hex(), info.tokens, info.bytes, tier_name(info.tier),
                 info.pinned, info.hits,
                 info.expires_in_s if info.HasField("expires_in_s") else None)


def _with_breakpoint(prompt: Prompt, options: PromptOptions) -> tuple[Prompt, PromptOptions]:
    """The prompt with a breakpoint at its end."""
    if not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Message):
        messages = list(cast("Sequence[Message]", prompt))
        messages[-1] = dataclasses.replace(messages[-1], breakpoint=True)
        return messages, {"omit_generation_prompt": True, **options}
    end = len(prompt.encode()) if isinstance(prompt, str) else len(prompt)
    kept = {*options.get("breakpoints", ()), end}
    return prompt, {**options, "breakpoints": sorted(kept)}


def _id_of(made: inference_pb2.PrefillResponse, told: cache_store_pb2.ExplainResponse) -> str:
    # What the store has already is not published again.
    kept = max(made.boundaries, default=made.published.published_tokens)
    for boundary in told.boundaries:
        if boundary.boundary == kept and boundary.restore_point_id:
            return boundary.restore_point_id.hex()
    raise HearthError(f"the cache was not kept: {made.published.note or told.summary}")


def _found(caches: CacheList, id: str) -> Cache:
    for cache in caches:
        if cache.id == id:
            return cache
    raise NotFound(f"no cache has the id {id}")


_NO_STORE = "caches live at the store: give its address, Worker(..., store=ADDRESS)"


class Caches:
    def __init__(self, worker: Worker, store: Optional[Store]) -> None:
        self._worker, self._kept = worker, store

    @property
    def _store(self) -> Store:
        if self._kept is None:
            raise ValueError(_NO_STORE)
        return self._kept

    def create(self, prompt: Prompt, *, ttl_s: Optional[int] = None,
               durability: Durability = "default", adapter: str = "",
               **options: Unpack[PromptOptions]) -> Cache:
        """Computes a prompt, or its beginning that is new, and keeps it."""
        prompt, options = _with_breakpoint(prompt, options)
        made = self._worker.prefill(prompt, ttl_s=ttl_s, durability=durability, adapter=adapter,
                                    **options)
        return self.get(_id_of(made, self._worker.explain(prompt, adapter=adapter, **options)))

    def get(self, id: str) -> Cache:
        return _found(self.list(), id)

    def list(self) -> CacheList:
        return [_cache_of(info) for info in self._store.list()]

    def delete(self, id: str) -> None:
        self._store.drop(bytes.fromhex(id))

    def update(self, id: str, *, ttl_s: int) -> Cache:
        """Lets a cache live for so long from now; a later end that it has already stays."""
        self._store.renew(bytes.fromhex(id), ttl_s)
        return self.get(id)


class AsyncCaches:
    def __init__(self, worker: AsyncWorker, store: Optional[AsyncStore]) -> None:
        self._worker, self._kept = worker, store

    @property
    def _store(self) -> AsyncStore:
        if self._kept is None:
            raise ValueError(_NO_STORE)
        return self._kept

    async def create(self, prompt: Prompt, *, ttl_s: Optional[int] = None,
                     durability: Durability = "default", adapter: str = "",
                     **options: Unpack[PromptOptions]) -> Cache:
        prompt, options = _with_breakpoint(prompt, options)
        made = await self._worker.prefill(prompt, ttl_s=ttl_s, durability=durability,
                                          adapter=adapter, **options)
        told = await self._worker.explain(prompt, adapter=adapter, **options)
        return await self.get(_id_of(made, told))

    async def get(self, id: str) -> Cache:
        return _found(await self.list(), id)

    async def list(self) -> CacheList:
        return [_cache_of(info) for info in await self._store.list()]

    async def delete(self, id: str) -> None:
        await self._store.drop(bytes.fromhex(id))

    async def update(self, id: str, *, ttl_s: int) -> Cache:
        await self._store.renew(bytes.fromhex(id), ttl_s)
        return await self.get(id)
