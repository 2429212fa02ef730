"""BlockLedger: the blocks that routers know, and the restore points that need each block.

Blocks form trees, because prompts share beginnings. A block stays while a restore point ends in it
or in one of its descendants. Each block stores its parent and its tokens, so that all blocks can be
sent again to a router that missed events.
Invariants: 1. The parent of each block is in the ledger. 2. A block's `uses` is the number of its
children plus the number of restore points that end in it, and is above 0. 3. There are at most
max_blocks blocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Optional

from hearth_cache.events._batches import BlocksRemoved, BlocksStored, KvEvent


@dataclass
class PointBlocks:
    """A restore point and all its blocks, from the first token on."""

    point_id: bytes
    block_tokens: int
    ids: list[int] = field(default_factory=list[int])
    # `block_tokens` token ids for each block id.
    token_ids: list[int] = field(default_factory=list[int])


class _Block:
    __slots__ = ("parent_id", "uses", "tokens")

    def __init__(self, parent_id: int, tokens: bytes) -> None:
        self.parent_id, self.tokens, self.uses = parent_id, tokens, 0


class BlockLedger:
    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._blocks: dict[int, _Block] = {}
        self._points: dict[bytes, int] = {}  # restore point id: id of its last block

    def __contains__(self, point_id: bytes) -> bool:
        return point_id in self._points

    @property
    def blocks(self) -> int:
        return len(self._blocks)

    @property
    def points(self) -> int:
        return len(self._points)

    def add(self, point: PointBlocks) -> Optional[list[KvEvent]]:
        """Adds a restore point. Returns the events about new blocks. Returns None and changes
        nothing if there would be too many blocks, or if a block id is known with another parent.
        REQUIRES: the restore point has a block."""
        if point.point_id in self._points:
            return []
        known, each = self._known(point), point.block_tokens
        if known is None or len(self._blocks) + len(point.ids) - known > self._max_blocks:
            return None
        parent = point.ids[known - 1] if known > 0 else 0
        stored = BlocksStored(point.ids[known:], parent, point.token_ids[known * each:], each)
        for number, block_id in enumerate(stored.ids):
            if parent != 0:
                self._blocks[parent].uses += 1
            tokens = array("I", stored.token_ids[number * each:(number + 1) * each]).tobytes()
            self._blocks[block_id] = _Block(parent, tokens)
            parent = block_id
        self._blocks[parent].uses += 1
        self._points[point.point_id] = parent
        return [stored] if stored.ids else []

    def _known(self, point: PointBlocks) -> Optional[int]:
        """Returns how many of the restore point's first blocks are known; None if an id repeats or
        is known with another parent."""
        added: set[int] = set()
        parent = known = 0
        for block_id in point.ids:
            block = self._blocks.get(block_id)
            if block_id == 0 or block_id in added:
                return None
            if block is None:
                added.add(block_id)
            elif added or block.parent_id != parent:
                return None
            else:
                known += 1
            parent = block_id
        return known

    def remove(self, point_id: bytes) -> list[KvEvent]:
        """Removes a restore point. Returns the event about blocks that no other restore point
        needs, children before parents."""
        block_id, removed = self._points.pop(point_id, 0), BlocksRemoved([])
        while block_id != 0:
            block = self._blocks[block_id]
            block.uses -= 1
            if block.uses > 0:
                break
            removed.ids.append(block_id)
            del self._blocks[block_id]
            block_id = block.parent_id
        return [removed] if removed.ids else []

    def keep(self, point_ids: Set[bytes]) -> list[KvEvent]:
        """Removes all restore points except these."""
        gone = [point_id for point_id in self._points if point_id not in point_ids]
        return [event for point_id in gone for event in self.remove(point_id)]

    def everything(self) -> Iterator[KvEvent]:
        """Yields events about all blocks, parents before children, for a router that knows no
        block."""
        sent: set[int] = set()
        for block_id in self._points.values():
            chain: list[int] = []
            while block_id != 0 and block_id not in sent:
                sent.add(block_id)
                chain.append(block_id)
                block_id = self._blocks[block_id].parent_id
            if chain:
                chain.reverse()
                tokens = array("I", b"".join(self._blocks[one].tokens for one in chain))
                yield BlocksStored(chain, block_id, tokens.tolist(), len(tokens) // len(chain))
