"""A worker's status page, and what two workers add to the page of their store: as JSON, and in a
browser.

Run as: python worker_page_test.py BIN_DIR WRITE_CHECKPOINT [unittest arguments]. The tests
InBrowser without a browser end with exit code 77, which ctest shows as skipped.
"""

import json
import shutil
import sys
import time
import urllib.error
import urllib.request

import system_support
from access_support import AccessTest
from browser_page import Page, skip_without_browser
from http_worker import TOKENIZER, VOCABULARY
from system_support import CHUNK_TOKENS, LONG_S, SystemTest, prompt

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

    def status(self):
        with urllib.request.urlopen(self.url + "/status.json", timeout=LONG_S) as answer:
            return json.loads(answer.read())


class WorkerPage(WorkerWithPage):

    def test_status_json_counts_requests(self):
        # The worker counts a request after its answer.
        end = time.monotonic() + LONG_S
        while (status := self.status())["latencies"][0]["count"] < 2:
            self.assertLess(time.monotonic(), end, status)
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


TEXT = "Dear doctor, since Monday my heart beats fast. I sleep badly, and I eat little. " * 4


class Fleet(AccessTest):
    """A store that knows an administrator, and two workers. All show prompt text."""

    def setUp(self):
        super().setUp()
        self.identities("store.json", identities=[
            self.by_token("root", "admin"), self.by_token("node", "worker"),
            self.by_token("team-a", "tenant")])
        self.store = self.cluster.store(
            self.folder / "data", "--identities-file", self.access / "store.json",
            "--show-prompt-text", "on", "--log-level", "debug", pages=("metrics",))
        self.url = self.store.url("metrics")
        model = self.model(vocabulary=VOCABULARY)
        shutil.copy(TOKENIZER, model)
        self.nodes = [self.worker(model, self.store.address, "--store-token-file",
                                  self.access / "node.token", "--show-prompt-text", "on",
                                  "--http-model", "lighthouse", "--log-level", "debug",
                                  pool_bytes=16 << 20) for _ in range(2)]

    def generate(self, node):
        return self.cluster.ctl("generate", "--worker", node.address, "--wait", LONG_S, "--prompt",
                                TEXT, "--max-new-tokens", "1", "--wait-published")

    def names(self, token=None):
        headers = {"Authorization": f"Bearer token-of-{token}"} if token else {}
        request = urllib.request.Request(self.url + "/fleet.json", headers=headers)
        with urllib.request.urlopen(request, timeout=LONG_S) as answer:
            return json.loads(answer.read())

    def wait_for_workers(self, count):
        end = time.monotonic() + LONG_S
        while len(self.names("root")["workers"]) != count:
            self.assertLess(time.monotonic(), end, self.store.log_tail())

    def status(self):
        with urllib.request.urlopen(self.url + "/status.json", timeout=LONG_S) as answer:
            return json.loads(answer.read())


class FleetPage(Fleet):

    def wait_for_words(self):
        """Generates until the page has words: a worker sends them once a report was answered."""
        end = time.monotonic() + LONG_S
        while True:
            shown = self.names("root")
            if any(point["words"] for point in shown["prefixes"].values()):
                return shown
            self.assertLess(time.monotonic(), end, shown)
            for node in self.nodes:
                self.generate(node)

    def test_every_token_of_two_workers_counts_once(self):
        answers = [self.generate(self.nodes[i]) for i in (0, 0, 1, 1, 1)]
        tokens = answers[0]["prompt_tokens"]
        restored = [answer["cached_tokens"] for answer in answers]
        self.assertEqual(restored[0], 0)
        self.assertGreater(min(restored[1:]), 0)
        # Each worker reports the rest of its tokens when it stops.
        for node in self.nodes:
            self.assertEqual(node.stop(), 0)
        self.wait_for_workers(0)
        shown = self.status()
        lookups = shown["lookups"]
        self.assertEqual(lookups["lookup_tokens"] + lookups["unasked_tokens"], 5 * tokens)
        self.assertEqual(lookups["hit_tokens"] + lookups["held_tokens"] +
                         lookups["unasked_held_tokens"], sum(restored))
        self.assertGreater(lookups["saved_us"], 0)
        self.assertEqual(shown["fleet"], {"workers": 0, "models": 0})

    def test_names_and_words_need_the_token_of_an_administrator(self):
        self.generate(self.nodes[0])
        self.wait_for_workers(2)
        for token, code in ((None, 401), ("nobody", 401), ("node", 403), ("team-a", 403)):
            with self.assertRaises(urllib.error.HTTPError, msg=token) as refused:
                self.names(token)
            self.assertEqual(refused.exception.code, code, token)
            self.assertNotIn(b"lighthouse", refused.exception.read())
            refused.exception.close()
        shown = self.names("root")
        self.assertEqual([worker["caller"] for worker in shown["workers"]], ["node", "node"])
        self.assertEqual([(model["name"], model["workers"]) for model in shown["models"]],
                         [("lighthouse", 2)])
        shown = self.wait_for_words()
        for point in shown["prefixes"].values():
            self.assertEqual((point["tenant"], point["model"]), ("default", "lighthouse"))
            self.assertGreaterEqual(len(point["words"]), len("Dear doctor"))
            self.assertTrue(TEXT.startswith(point["words"]), point)
        text = json.dumps(self.status())
        for name in ("lighthouse", "node", "Dear doctor"):
            self.assertNotIn(name, text)

    def test_words_are_in_no_file(self):
        self.wait_for_workers(2)
        self.wait_for_words()
        for node in (*self.nodes, self.store):
            node.stop()
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        self.assertGreater(len(files), 10)
        for path in files:
            self.assertNotIn(b"Dear doctor", path.read_bytes(), path)

    def test_flag_needs_page_and_tokens(self):
        flags = ["--data-dir", "", "--listen", "127.0.0.1:0", "--show-prompt-text", "on"]
        said = self.fails_to_start("hearth-store", *flags)
        self.assertIn("give --metrics-listen", said)
        said = self.fails_to_start("hearth-store", *flags, "--metrics-listen", "127.0.0.1:0")
        self.assertIn("--identities-file", said)


class FleetPageInBrowser(Fleet):

    def test_administrator_opens_names(self):
        self.generate(self.nodes[0])
        with Page(self.url + "/") as page:
            page.wait_for("workers_connected", "2")
            page.wait_for("ask_text", "2 workers are connected. An administrator sees")
            send = "document.getElementById('token').value = %s; " \
                "document.getElementById('ask_form').requestSubmit()"
            page.value(send % json.dumps("token-of-node"))
            page.wait_for("ask_error", "this token is not an administrator's")
            page.value(send % json.dumps("token-of-nobody"))
            page.wait_for("ask_error", "no valid identity")
            self.assertTrue(page.value("document.getElementById('workers_card').hidden"))
            page.value(send % json.dumps("token-of-root"))
            page.wait_for("models", "lighthouse")
            self.assertEqual(page.value("document.getElementById('workers').rows.length"), 2)
            self.assertTrue(page.value("document.getElementById('ask_card').hidden"))
            self.generate(self.nodes[0])
            self.generate(self.nodes[1])
            page.wait_for("hottest", "Dear doctor")
            self.assertEqual(len(list(page.sizes("fleet"))), 4)
            self.nodes[1].kill()
            page.wait_for("workers_connected", "1")
            page.value("names.workers[0].name = names.workers[0].models[0] = "
                       "'<img src=x onerror=hit=1>'; workers(names.workers)")
            self.assertEqual(page.value("document.querySelectorAll('img').length"), 0)


if __name__ == "__main__":
    if "WorkerPageInBrowser" in sys.argv or "FleetPageInBrowser" in sys.argv:
        skip_without_browser()
    system_support.main()
