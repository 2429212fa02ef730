"""Worker.caches: prefixes that a caller keeps by name, as providers' context caches are used.

A cache is a restore point of the store that the worker publishes to; making one is a Prefill of its
prompt with a breakpoint at the end. Its id is the restore point's, in hexadecimal digits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional, cast

from typing_extensions import Unpack

from hearth_cache.answers import Cache, tier_name
from hearth_cache.errors import HearthError, NotFound
from hearth_cache.prompts import Message, PrefillOptions, Prompt

if TYPE_CHECKING:
    from hearth_cache.aio.store import AsyncStore
    from hearth_cache.aio.worker import AsyncWorker

CacheList = list[Cache]


class AsyncCaches:
    def __init__(self, worker: AsyncWorker, store: Optional[AsyncStore]) -> None:
        self._worker, self._kept = worker, store

    @property
    def _store(self) -> AsyncStore:
        if self._kept is None:
            raise ValueError(
                "caches live at the store: give its address, Worker(..., store=ADDRESS)")
        return self._kept

    async def create(self, prompt: Prompt, **options: Unpack[PrefillOptions]) -> Cache:
        """Computes a prompt, or its beginning that is new, and keeps it."""
        if not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Message):
            *others, end = cast("Sequence[Message]", prompt)
            prompt = [*others, dataclasses.replace(end, breakpoint=True)]
            options.setdefault("omit_generation_prompt", True)
        else:
            length = len(prompt.encode() if isinstance(prompt, str) else prompt)
            options["breakpoints"] = sorted({*options.get("breakpoints", ()), length})
        made = await self._worker.prefill(prompt, **options)
        told = await self._worker.explain(prompt, **options)
        # What the store has already is not published again.
        kept = max(made.boundaries, default=made.published.published_tokens)
        for boundary in told.boundaries:
            if boundary.boundary == kept and boundary.restore_point_id:
                return await self.get(boundary.restore_point_id.hex())
        raise HearthError(f"the cache was not kept: {made.published.note or told.summary}")

    async def get(self, id: str) -> Cache:
        for cache in await self.list():
            if cache.id == id:
                return cache
        raise NotFound(f"no cache has the id {id}")

    async def list(self) -> CacheList:
        return [Cache(one.restore_point_id.hex(), one.tokens, one.bytes, tier_name(one.tier),
                      one.pinned, one.hits,
                      one.expires_in_s if one.HasField("expires_in_s") else None)
                for one in await self._store.list()]

    async def delete(self, id: str) -> None:
        await self._store.drop(bytes.fromhex(id))

    async def update(self, id: str, *, ttl_s: int) -> Cache:
        """Lets a cache live for so long from now; a later end that it has already stays."""
        await self._store.renew(bytes.fromhex(id), ttl_s)
        return await self.get(id)
