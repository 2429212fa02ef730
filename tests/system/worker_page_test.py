"""A worker's status page: its JSON, and the page in a browser.

Run as: python worker_page_test.py BIN_DIR WRITE_CHECKPOINT [unittest arguments].
WorkerPageInBrowser without a browser ends with exit code 77, which ctest shows as skipped.
"""

import json
import sys
import urllib.request

import system_support
from browser_page import Page, skip_without_browser
from system_support import CHUNK_TOKENS, SystemTest, prompt

PROMPT_TOKENS = 150
LAST_CHUNK = (PROMPT_TOKENS - 1) // CHUNK_TOKENS * CHUNK_TOKENS


class WorkerWithPage(SystemTest):
    """Tests a worker with a store, after two equal requests. The second one hit the worker's
    pool."""

    def setUp(self):
        super().setUp()
        self.store = self.cluster.store(self.folder / "data")
        self.node = self.worker(self.model(), self.store.address, pool_bytes=16 << 20,
                                pages=("metrics",))
        self.url = self.node.url("metrics")
        for _ in range(2):
            self.cluster.generate(self.node.address, prompt(PROMPT_TOKENS, "page"),
                                  "--wait-published", max_new_tokens=4)


class WorkerPage(WorkerWithPage):

    def test_status_json_counts_requests(self):
        with urllib.request.urlopen(self.url + "/status.json", timeout=20) as answer:
            status = json.loads(answer.read())
        self.assertEqual(status["program"], "hearth-worker")
        self.assertEqual(status["totals"]["requests"], 2)
        self.assertEqual(status["totals"]["prompt_tokens"], 2 * PROMPT_TOKENS)
        self.assertEqual(status["totals"]["cached_tokens"], LAST_CHUNK)
        self.assertEqual(status["sources"]["worker"], LAST_CHUNK)
        self.assertEqual(status["latencies"][0]["count"], 2)
        self.assertNotIn("token_ids", json.dumps(status))


class WorkerPageInBrowser(WorkerWithPage):

    def test_page_shows_requests_and_sources(self):
        share = f"{100 * LAST_CHUNK / (2 * PROMPT_TOKENS):.1f} %"
        with Page(self.url + "/") as page:
            page.wait_for("live", "live")
            self.assertEqual(page.wait_for("program", "hearth-worker"), "hearth-worker")
            page.wait_for("token_rate", share)
            page.wait_for("requests", "2")
            page.wait_for("requests-requests_finished", "2")
            page.wait_for("source-worker", f"{LAST_CHUNK}, {share}")
            page.wait_for("rate_text", f"{share} of tokens, 2 requests.")
            for card in ("hottest", "publishes", "removed"):
                self.assertTrue(page.value(f"document.getElementById('{card}_card').hidden"))
            self.assertEqual(len(list(page.sizes("worker"))), 4)


if __name__ == "__main__":
    if "WorkerPageInBrowser" in sys.argv:
        skip_without_browser()
    system_support.main()
