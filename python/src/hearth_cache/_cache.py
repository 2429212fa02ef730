"""Worker.caches: prefixes that a caller keeps by name, as providers' context caches are used.

A cache is a restore point of the store that the worker publishes to; making one is a Prefill of its
prompt with a breakpoint at the end. Its id is the restore point's, in hexadecimal digits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional, cast

from hearth_cache.answers import tier_name
from hearth_cache.errors import HearthError, NotFound
from hearth_cache.prompts import Message, Prompt, PromptOptions
from hearth_cache.v1 import cache_store_pb2, inference_pb2


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


def cache_of(info: cache_store_pb2.RestorePointInfo) -> Cache:
    return Cache(info.restore_point_id.hex(), info.tokens, info.bytes, tier_name(info.tier),
                 info.pinned, info.hits,
                 info.expires_in_s if info.HasField("expires_in_s") else None)


def with_breakpoint(prompt: Prompt, options: PromptOptions) -> tuple[Prompt, PromptOptions]:
    """The prompt with a breakpoint at its end."""
    if not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Message):
        messages = list(cast("Sequence[Message]", prompt))
        messages[-1] = dataclasses.replace(messages[-1], breakpoint=True)
        return messages, {"omit_generation_prompt": True, **options}
    end = len(prompt.encode()) if isinstance(prompt, str) else len(prompt)
    kept = {*options.get("breakpoints", ()), end}
    return prompt, {**options, "breakpoints": sorted(kept)}


def id_of(made: inference_pb2.PrefillResponse, told: cache_store_pb2.ExplainResponse) -> str:
    # What the store has already is not published again.
    kept = max(made.boundaries, default=made.published.published_tokens)
    for boundary in told.boundaries:
        if boundary.boundary == kept and boundary.restore_point_id:
            return boundary.restore_point_id.hex()
    raise HearthError(f"the cache was not kept: {made.published.note or told.summary}")


def found(caches: CacheList, id: str) -> Cache:
    for cache in caches:
        if cache.id == id:
            return cache
    raise NotFound(f"no cache has the id {id}")


NO_STORE = "caches live at the store: give its address, Worker(..., store=ADDRESS)"
