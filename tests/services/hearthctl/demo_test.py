"""Checks the demo's verdict, closing sentence and picture, without processes."""

import pathlib
import sys
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts"))

import demo  # noqa: E402  (path set above)
import demo_picture  # noqa: E402


def row(**changes):
    good = {"name": "Worker 2", "expected": "warm", "cached_tokens": 2048, "prompt_tokens": 2060,
            "source_tier": "host", "ttft_ms": 200.0, "speedup": 20.0, "text_equal": True,
            "logits_equal": True}
    return {**good, **changes}


class Verdict(unittest.TestCase):
    def test_warm_row_without_reuse_fails(self):
        self.assertTrue(demo.good(row(), 5))
        for change in ({"cached_tokens": 0}, {"text_equal": False}, {"logits_equal": False},
                       {"speedup": 4.99}):
            self.assertFalse(demo.good(row(**change), 5), change)

    def test_cold_row_with_reuse_fails(self):
        cold = row(expected="cold", cached_tokens=0, speedup=1.0)
        self.assertTrue(demo.good(cold, 5))
        self.assertFalse(demo.good({**cold, "cached_tokens": 128}, 5))

    def test_closing_sentence_names_failed_row(self):
        rows = [row(expected="cold", cached_tokens=0), row(), row(name="Worker 3", speedup=2.0)]
        self.assertIn("Worker 3", demo.closing(rows, 2048, False, 5))
        self.assertIn("bit for bit", demo.closing(rows[:2], 2048, True, 5))


class Picture(unittest.TestCase):
    def test_picture_shows_every_row(self):
        rows = [row(name="a < b", expected="cold", source_tier="none", ttft_ms=4100.0), row(),
                row(name="Worker 3", source_tier="disk", logits_equal=False)]
        root = xml.etree.ElementTree.fromstring(demo_picture.draw(rows, 2048))
        words = " ".join(node.text or "" for node in root.iter())
        for expected in ("a < b", "Worker 2", "4.10 s", "200 ms", "20x sooner", "ANSWER DIFFERS"):
            self.assertIn(expected, words)


if __name__ == "__main__":
    unittest.main()
