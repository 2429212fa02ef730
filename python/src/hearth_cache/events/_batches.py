"""Events about blocks of KV, in the bytes that vLLM publishes and routers read.

A payload is MessagePack: [seconds, [event, ...], rank]. An event is an array that begins with its
name. vLLM itself writes maps since 0.2x; all known readers still take arrays, older ones nothing
else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Optional, Union

import msgspec

# A payload then has about 80 KiB. A subscriber that does not read has at most --high-water of them
# waiting.
MAX_BATCH_TOKENS = 16 << 10
MAX_BATCH_REMOVALS = 4 << 10
_RANK = 0  # vLLM's data-parallel rank; workers of Hearth have none


@dataclass(frozen=True)
class BlocksStored:
    """Blocks that follow each other in a prompt. `parent_id`: the block before them, or 0."""

    ids: list[int]
    parent_id: int
    token_ids: list[int]  # block_tokens for each
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
    medium: str = "CPU"  # where the blocks are: CPU, GPU, ...
    lora_name: str = ""


def encode_batches(events: Iterable[KvEvent], labels: KvLabels, now: float) -> list[bytes]:
    """The events in order, in as few payloads as the limits allow; long events are divided."""
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
    """Each event as it is encoded, and its size in tokens."""
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
