"""The encoding of batches, compared with msgspec, the library of vLLM, and vLLM's event classes.
--write writes the golden file."""

import pathlib
import sys
import unittest
from typing import Any, List

import python_support

try:
    import msgspec
except ImportError:
    print("skipped: msgspec is not installed")
    sys.exit(77)

from vllm_events import AllBlocksCleared, Batch, BlockRemoved, BlockStored  # noqa: E402

from hearth_cache.events import _batches as ours  # noqa: E402

GOLDEN_FILE = pathlib.Path(__file__).parent / "kv_batch.hex"
NOW = 1764000000.123456
FIRST = 1 << 62 | 5


class OldBatch(msgspec.Struct, array_like=True):
    """A batch in the form that old readers know, without the rank."""
    ts: float
    events: List[Any]


ROOT = [2, 300, 70000, 262143]
GOLDEN = [
    Batch(NOW, [AllBlocksCleared(),
                BlockStored([FIRST, FIRST + 1], None, ROOT, 2, None, "CPU", None),
                BlockStored([FIRST + 2], FIRST + 1, [7, 8], 2, None, "CPU", None),
                BlockRemoved([FIRST + 2, FIRST + 1], "CPU")], 0),
    Batch(NOW, [BlockStored([FIRST, FIRST + 1], None, ROOT, 2, None, "GPU", "tales"),
                BlockRemoved([FIRST], "GPU")], 0),
]


def decoded(events, labels=ours.KvLabels()):
    return [msgspec.msgpack.decode(payload, type=Batch)
            for payload in ours.encode_batches(events, labels, NOW)]


class Golden(unittest.TestCase):

    def setUp(self):
        self.payloads = [bytes.fromhex(line) for line in GOLDEN_FILE.read_text().split()]

    def test_msgspec_decodes_golden_bytes(self):
        self.assertEqual([msgspec.msgpack.decode(payload, type=Batch)
                          for payload in self.payloads], GOLDEN)

    def test_vllm_events_encode_golden_bytes(self):
        self.assertEqual([msgspec.msgpack.encode(batch) for batch in GOLDEN], self.payloads)

    def test_encoder_writes_golden_bytes(self):
        root = ours.BlocksStored([FIRST, FIRST + 1], 0, ROOT, 2)
        following = ours.BlocksStored([FIRST + 2], FIRST + 1, [7, 8], 2)
        self.assertEqual(
            ours.encode_batches([ours.AllBlocksCleared(), root, following,
                                 ours.BlocksRemoved([FIRST + 2, FIRST + 1])],
                                ours.KvLabels("CPU", ""), NOW) +
            ours.encode_batches([root, ours.BlocksRemoved([FIRST])],
                                ours.KvLabels("GPU", "tales"), NOW), self.payloads)

    def test_old_reader_ignores_new_fields(self):
        for payload in self.payloads:
            batch = msgspec.msgpack.decode(payload, type=OldBatch)
            self.assertEqual(batch.ts, NOW)
            self.assertIn(batch.events[0][0], ("AllBlocksCleared", "BlockStored"))

    def test_block_ids_take_nine_bytes(self):
        # A reader in Go accepts block ids only as 64-bit integers: a type byte and eight bytes.
        self.assertEqual(self.payloads[0].count(b"\xcf\x40\0\0\0\0\0\0"), 6)


class Batches(unittest.TestCase):

    def test_no_events_make_no_batch(self):
        self.assertEqual(ours.encode_batches([], ours.KvLabels(), NOW), [])

    def test_empty_batch_is_decoded(self):
        self.assertEqual(msgspec.msgpack.decode(ours.encode_empty_batch(NOW), type=Batch),
                         Batch(NOW, [], 0))

    def test_long_prompt_is_split_into_linked_batches(self):
        each, most = 16, ours.MAX_BATCH_TOKENS
        ids = [1000 + i for i in range(3 * most // each - 1)]
        batches = decoded([ours.BlocksStored(ids, 999, [3] * len(ids) * each, each)])
        self.assertEqual([len(batch.events) for batch in batches], [1, 1, 1])
        events, parent = [batch.events[0] for batch in batches], 999
        for event in events:
            self.assertEqual(event.parent_block_hash, parent)
            self.assertLessEqual(len(event.token_ids), most)
            self.assertEqual(len(event.token_ids), len(event.block_hashes) * each)
            parent = event.block_hashes[-1]
        self.assertEqual([one for event in events for one in event.block_hashes], ids)

    def test_large_removal_is_split(self):
        stored = [ours.BlocksStored([i + 1], 0, [1, 2], 2) for i in range(100)]
        self.assertEqual(len(decoded(stored)), 1)
        batches = decoded([ours.BlocksRemoved([5] * (2 * ours.MAX_BATCH_REMOVALS + 1))])
        self.assertEqual([len(batch.events[0].block_hashes) for batch in batches],
                         [ours.MAX_BATCH_REMOVALS, ours.MAX_BATCH_REMOVALS, 1])


if __name__ == "__main__":
    if "--write" in sys.argv:
        GOLDEN_FILE.write_text("".join(msgspec.msgpack.encode(batch).hex() + "\n"
                                       for batch in GOLDEN))
        sys.exit(0)
    python_support.main()
