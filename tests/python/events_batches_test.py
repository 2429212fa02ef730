"""The golden batches, read and written with the library that vLLM uses: msgspec.

Run as: python events_format_test.py GOLDEN
"""

import pathlib
import sys
import unittest
from typing import Any, List

try:
    import msgspec
except ImportError:
    print("skipped: msgspec is not installed")
    sys.exit(77)

sys.path.append(str(pathlib.Path(__file__).parents[2] / "system"))
from vllm_events import AllBlocksCleared, Batch, BlockRemoved, BlockStored  # noqa: E402

NOW = 1764000000.123456
FIRST = 1 << 62 | 5


class OldBatch(msgspec.Struct, array_like=True):
    """As the first readers had it: without a rank."""
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


class EventsFormat(unittest.TestCase):

    def setUp(self):
        self.payloads = [bytes.fromhex(line) for line in GOLDEN_FILE.read_text().split()]

    def test_msgspec_reads_what_was_meant(self):
        self.assertEqual([msgspec.msgpack.decode(payload, type=Batch)
                          for payload in self.payloads], GOLDEN)

    def test_msgspec_writes_the_same_bytes(self):
        self.assertEqual([msgspec.msgpack.encode(batch) for batch in GOLDEN], self.payloads)

    def test_readers_of_older_fields_pass_over_the_rest(self):
        for payload in self.payloads:
            batch = msgspec.msgpack.decode(payload, type=OldBatch)
            self.assertEqual(batch.ts, NOW)
            self.assertIn(batch.events[0][0], ("AllBlocksCleared", "BlockStored"))

    def test_numbers_take_nine_bytes_each(self):
        # Go's reader keeps the width: it knows numbers of eight bytes behind their mark only.
        self.assertEqual(self.payloads[0].count(b"\xcf\x40\0\0\0\0\0\0"), 6)


if __name__ == "__main__":
    GOLDEN_FILE = pathlib.Path(sys.argv.pop(1))
    if "--write" in sys.argv:
        GOLDEN_FILE.write_text("".join(msgspec.msgpack.encode(batch).hex() + "\n"
                                       for batch in GOLDEN))
        sys.exit(0)
    unittest.main()
