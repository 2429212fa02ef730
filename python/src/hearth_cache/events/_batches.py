"""Events about KV blocks, encoded as vLLM publishes them and routers read them.

A payload is MessagePack: [seconds, [event, ...], rank]. An event is an array that begins with its
name. Newer releases of vLLM write maps; all known readers accept arrays, and older readers accept
only arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Optional, Union

import msgspec

# Limits of a batch; its encoded size is then at most about 80 KiB. For a subscriber that does not
# read, at most --high-water batches are queued.
MAX_BATCH_TOKENS = 16 << 10
MAX_BATCH_REMOVALS = 4 << 10
_RANK = 0  # data-parallel rank of vLLM's events; Hearth's workers have none


@dataclass(frozen=True)
class BlocksStored:
    """Consecutive blocks of a prompt. `parent_id`: id of the block before the first; 0 at the
    prompt's beginning."""

    ids: list[int]
    parent_id: int
    token_ids: list[int]  # `block_tokens` token ids for each block id
    block_tokens: int


@dataclass(frozen=True)
class BlocksRemoved:
    ids: list[int]


@dataclass(frozen=True)
class AllBlocksCleared:
    pass


KvEvent = Union[BlocksStored, BlocksRemoved, AllBlocksCleared]


@dataclass(frozen=True)
class KvLabels:
    medium: str = "CPU"  # storage medium of the blocks in events: CPU, GPU, ...
    lora_name: str = ""


def encode_batches(events: Iterable[KvEvent], labels: KvLabels, now: float) -> list[bytes]:
    """Encodes the events in order into as few batches as the limits allow. Splits long events."""
    payloads: list[bytes] = []
    batch: list[list[object]] = []
    size = 0
    for event, tokens in _pieces(events, labels.medium or None, labels.lora_name or None):
        if batch and size + tokens > MAX_BATCH_TOKENS:
            payloads.append(_payload(batch, now))
            batch, size = [], 0
        batch.append(event)
        size += tokens
    if batch:
        payloads.append(_payload(batch, now))
    return payloads


def encode_empty_batch(now: float) -> bytes:
    return _payload([], now)


def _payload(events: list[list[object]], now: float) -> bytes:
    return msgspec.msgpack.encode([now, events, _RANK])


def _pieces(events: Iterable[KvEvent], medium: Optional[str],
            lora_name: Optional[str]) -> Iterator[tuple[list[object], int]]:
    """Yields (encoded event, its tokens) for each event; a long event is split."""
    for event in events:
        if isinstance(event, BlocksStored):
            parent, each = event.parent_id, event.block_tokens
            most = max(1, MAX_BATCH_TOKENS // each)
            for begin in range(0, len(event.ids), most):
                ids = event.ids[begin:begin + most]
                tokens = event.token_ids[begin * each:(begin + len(ids)) * each]
                no_lora_number = None
                yield ["BlockStored", ids, parent or None, tokens, each, no_lora_number, medium,
                       lora_name], len(tokens)
                parent = ids[-1]
        elif isinstance(event, BlocksRemoved):
            for begin in range(0, len(event.ids), MAX_BATCH_REMOVALS):
                ids = event.ids[begin:begin + MAX_BATCH_REMOVALS]
                tokens_each = MAX_BATCH_TOKENS // MAX_BATCH_REMOVALS
                yield ["BlockRemoved", ids, medium], len(ids) * tokens_each
        else:
            yield ["AllBlocksCleared"], 0
