"""Worker.caches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from typing_extensions import Unpack

from hearth_cache._cache import (
    NO_STORE, Cache, CacheList, cache_of, found, id_of, with_breakpoint)
from hearth_cache.prompts import Durability, Prompt, PromptOptions

if TYPE_CHECKING:
    from hearth_cache.aio.store import AsyncStore
    from hearth_cache.aio.worker import AsyncWorker


class AsyncCaches:
    def __init__(self, worker: AsyncWorker, store: Optional[AsyncStore]) -> None:
        self._worker, self._kept = worker, store

    @property
    def _store(self) -> AsyncStore:
        if self._kept is None:
            raise ValueError(NO_STORE)
        return self._kept

    async def create(self, prompt: Prompt, *, ttl_s: Optional[int] = None,
                     durability: Durability = "default", adapter: str = "",
                     **options: Unpack[PromptOptions]) -> Cache:
        """Computes a prompt, or its beginning that is new, and keeps it."""
        prompt, options = with_breakpoint(prompt, options)
        made = await self._worker.prefill(prompt, ttl_s=ttl_s, durability=durability,
                                          adapter=adapter, **options)
        told = await self._worker.explain(prompt, adapter=adapter, **options)
        return await self.get(id_of(made, told))

    async def get(self, id: str) -> Cache:
        return found(await self.list(), id)

    async def list(self) -> CacheList:
        return [cache_of(info) for info in await self._store.list()]

    async def delete(self, id: str) -> None:
        await self._store.drop(bytes.fromhex(id))

    async def update(self, id: str, *, ttl_s: int) -> Cache:
        """Lets a cache live for so long from now; a later end that it has already stays."""
        await self._store.renew(bytes.fromhex(id), ttl_s)
        return await self.get(id)
