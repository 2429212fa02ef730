"""The store's status page, over HTTP and in a browser. Its figures equal those of Stats.

Run as: python status_page_test.py BIN_DIR STORE_CLIENT [unittest arguments]. StatusPageInBrowser
without a browser ends with exit code 77, which ctest shows as skipped.
"""

import html.parser
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

import system_support
from browser_page import Page, browser, skip_without_browser
from system_support import LONG_S, ROOT, SystemTest

SNAPSHOT = ROOT / "tests" / "proto" / "golden" / "tiny.snapshot"
# Milliseconds by which the browser advances the page's virtual clock before it dumps the DOM.
VIRTUAL_MS = 2500


class Shown(html.parser.HTMLParser):
    """Parses a page: `text`: {id: text of the element with its children}; `hidden`: ids of hidden
    elements; `loads`: addresses in src and href."""

    def __init__(self, page):
        super().__init__()
        self.text, self.hidden, self.loads, self._open = {}, set(), [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.loads += [attrs[name] for name in ("src", "href") if attrs.get(name)]
        if tag in ("meta", "link", "rect", "line", "br"):
            return
        self._open.append((tag, attrs.get("id")))
        if attrs.get("id"):
            self.text[attrs["id"]] = ""
            if "hidden" in attrs:
                self.hidden.add(attrs["id"])

    def handle_endtag(self, tag):
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        for _, name in self._open:
            if name:
                self.text[name] += data


class StoreWithPage(SystemTest):

    def setUp(self):
        super().setUp()
        self.store = self.cluster.store(self.folder / "data", "--host-bytes", "1MiB",
                                        "--disk-bytes", "10MiB", pages=("metrics",))
        self.url = self.store.url("metrics")

    def ctl(self, *args):
        return self.cluster.ctl(*args, "--store", self.store.address)

    def client(self, what):
        return subprocess.run([system_support.STORE_CLIENT, self.store.address, what], text=True,
                              capture_output=True, check=True).stdout.strip()

    def get(self, path, method="GET"):
        request = urllib.request.Request(self.url + path, method=method)
        with urllib.request.urlopen(request, timeout=LONG_S) as answer:
            return answer.headers, answer.read().decode()

    def fill(self):
        """Makes one pinned restore point that was restored once and exported once. The page must
        not count the export. Returns the restore point."""
        self.ctl("import", SNAPSHOT)
        point = self.ctl("ls")
        self.ctl("pin", point["id"])
        self.ctl("export", point["id"], "--out", self.folder / "exported")
        self.assertEqual(self.client("fetch"), "20")
        # The store counts a call after its answer.
        end = time.monotonic() + LONG_S
        while (counts := self.reads()) != (1, 1):
            self.assertLess(time.monotonic(), end, counts)
        return self.ctl("ls")

    def reads(self):
        """Returns the numbers of hits and exports."""
        counters = self.ctl("stats")["counters"]
        return counters["hits"], counters["exports"]


class StatusPage(StoreWithPage):

    def test_status_json_equals_stats(self):
        point = self.fill()
        _, text = self.get("/status.json")
        status = json.loads(text)
        stats = self.ctl("stats")
        self.assertEqual(status["restore_points"], 1)
        self.assertEqual([tier["bytes"] for tier in status["tiers"]],
                         [tier["bytes"] for tier in stats["tiers"]])
        self.assertEqual(status["lookups"]["hits"], stats["counters"]["hits"])
        self.assertEqual(status["lookups"]["hit_tokens"], 20)
        hottest = status["hottest"][0]
        self.assertEqual(hottest["id"], point["id"])
        self.assertEqual(hottest["hits"], 1)
        self.assertTrue(hottest["pinned"])
        self.assertNotIn("token_ids", text)
        self.assertNotIn("tenant", text)

    def test_pages_are_read_only_and_isolated(self):
        headers, page = self.get("/")
        self.assertIn("<title>", page)
        policy = headers["Content-Security-Policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertIn("frame-ancestors 'none'", policy)
        self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
        self.assertNotIn("Access-Control-Allow-Origin", headers)
        self.assertEqual(self.get("/", "HEAD")[1], "")
        self.assertIn("hearth_store_restore_points 0", self.get("/metrics")[1])
        for path, method, code in (("/nothing", "GET", 404), ("/../metrics/x", "GET", 404),
                                   ("/", "POST", 405), ("/metrics", "DELETE", 405)):
            with self.assertRaises(urllib.error.HTTPError, msg=path) as refused:
                self.get(path, method)
            self.assertEqual(refused.exception.code, code, path)
            refused.exception.close()


class StatusPageInBrowser(StoreWithPage):

    def browse(self):
        done = subprocess.run(
            [browser(), "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             f"--user-data-dir={self.folder / 'profile'}", f"--virtual-time-budget={VIRTUAL_MS}",
             "--dump-dom", self.url + "/"],
            capture_output=True, text=True, timeout=LONG_S, check=True)
        return Shown(done.stdout)

    def test_empty_store_shows_placeholders(self):
        shown = self.browse()
        self.assertEqual(shown.text["live"], "live")
        self.assertEqual(shown.text["program"], "hearth-store")
        self.assertEqual(shown.text["restore_points"], "0")
        self.assertEqual(shown.text["saved_tokens"], "0")
        self.assertEqual(shown.text["saved_time"], "–")
        self.assertEqual(shown.text["workers_connected"], "0")
        self.assertIn("No worker is connected.", shown.text["workers_empty"])
        self.assertNotIn("workers_empty", shown.hidden)
        self.assertEqual(shown.text["hit_rate"], "–")
        self.assertEqual(shown.text["tier-disk"], "0 B of 10.5 MB, 0.0 %")
        self.assertIn("Nothing is stored yet", shown.text["hottest_empty"])
        self.assertNotIn("hottest_empty", shown.hidden)
        for name, said in (("publishes", "Nothing was published yet."),
                           ("removed", "Nothing has left the store."), ("errors", "No errors.")):
            self.assertEqual(shown.text[name], said)
        for load in shown.loads:
            self.assertTrue(load.startswith(("data:", "/")), f"loaded from elsewhere: {load}")

    def test_page_figures_equal_stats(self):
        point = self.fill()
        stats = self.ctl("stats")
        shown = self.browse()
        self.assertEqual(shown.text["live"], "live")
        self.assertEqual(shown.text["restore_points"], "1")
        self.assertEqual(shown.text["saved_tokens"], "20")
        self.assertEqual(shown.text["hit_rate"], "100.0 %")
        for tier in stats["tiers"]:
            used = 100 * tier["bytes"] / tier["capacity_bytes"]
            self.assertTrue(shown.text["tier-" + tier["tier"]].endswith(f", {used:.1f} %"),
                            shown.text)
            self.assertIn(f"{tier['hit_tokens']} tokens restored",
                          shown.text["flow-" + tier["tier"]])
        model = point["fingerprint"][:12]
        self.assertTrue(shown.text["hottest"].startswith(point["id"][:12] + "default · " + model +
                                                         "120"),
                        shown.text["hottest"])  # 1 hit, 20 tokens
        self.assertIn("yesyes", shown.text["hottest"])  # durable, pinned
        self.assertIn("hottest_empty", shown.hidden)
        self.assertEqual(shown.text["publishes-publishes"], str(stats["counters"]["publishes"]))
        self.assertNotIn("publishes-publishes_refused_full", shown.text)
        self.assertEqual(shown.text["errors"], "No errors.")
        self.assertEqual(shown.text["count-publish_commit-disk"], "1")

    def test_hit_rate_text_matches_figures(self):
        self.fill()
        shown = self.browse()
        self.assertEqual(shown.text["hit_rate"], "100.0 %")
        self.assertEqual(shown.text["rate_text"], "20 tokens restored and 0 held by workers, "
                         "100.0 % of 20 prompt tokens.")
        self.assertIn("alarm", shown.hidden)

    def test_small_tier_fill_is_visible(self):
        with Page(self.url + "/") as page:
            page.wait_for("restore_points", "0")
            width = "document.getElementById('fill-disk').getBoundingClientRect().width"
            self.assertEqual(page.value(width), 0)
            self.fill()
            page.wait_for("restore_points", "1")
            self.assertGreaterEqual(page.value(width), 5)

    def test_prefix_held_by_worker_is_counted(self):
        with Page(self.url + "/") as page:
            page.wait_for("live", "live")
            page.value("""
                tiles({lookups: {fetches: 10, hits: 1, lookup_tokens: 5000, hit_tokens: 300,
                                 held_tokens: 4000, unasked_tokens: 700,
                                 unasked_held_tokens: 500, saved_us: 7.5e9},
                       fleet: {workers: 2, models: 1},
                       misses: {not_above: 8, no_common_prefix: 1}, restore_points: 4,
                       pinned_bytes: 0});""")
            page.wait_for("saved_tokens", "4,800")
            page.wait_for("workers_connected", "2")
            page.wait_for("saved_time", "2 h")
            page.wait_for("hit_rate", "50.0 %")
            shown = page.value("document.getElementById('tiles').textContent")
            self.assertIn("of 2 lookups hit", shown)
            self.assertIn("in 8 more, the worker already had the prefix", shown)

    def test_errors_appear_first_in_red(self):
        with Page(self.url + "/") as page:
            page.wait_for("live", "live")
            said, colour, bad, is_above = page.value("""
                alarm({tier_errors: 2, nondeterminism: 0, quarantined_objects: 1});
                const card = document.getElementById("alarm");
                [card.textContent, getComputedStyle(card).borderLeftColor,
                 getComputedStyle(document.documentElement).getPropertyValue("--bad").trim(),
                 card.getBoundingClientRect().bottom <=
                     document.getElementById("tiles").getBoundingClientRect().top];""")
            self.assertEqual(said, "Something is wrong. Now or since the start: 2 failed reads and "
                             "writes, 1 objects quarantined. See the log for when and where.")
            self.assertEqual(colour, "rgb(179, 38, 30)")
            self.assertEqual(bad, "#b3261e")
            self.assertTrue(is_above)

    def test_page_fits_every_width(self):
        self.fill()
        with Page(self.url + "/") as page:
            page.wait_for("restore_points", "1")
            for _, dark in page.sizes("page"):
                bright = page.value("getComputedStyle(document.body).backgroundColor")
                self.assertEqual(bright, "rgb(23, 22, 21)" if dark else "rgb(246, 245, 243)")
                heights = page.value("""
                    ["scale", "chart"].map((name) => Math.round(
                        document.getElementById(name).getBoundingClientRect().height))""")
                self.assertEqual(heights[0], heights[1], "the axis is as high as the chart")

    def test_dropped_point_is_counted(self):
        point = self.fill()
        self.ctl("drop", point["id"], "--force")
        shown = self.browse()
        self.assertEqual(shown.text["removed-dropped"], "1")
        self.assertEqual(shown.text["restore_points"], "0")

    def test_open_page_follows_store(self):
        with Page(self.url + "/") as page:
            page.wait_for("live", "live")
            self.assertEqual(page.wait_for("restore_points", "0"), "0")
            self.ctl("import", SNAPSHOT)
            self.assertEqual(page.wait_for("restore_points", "1"), "1")
            point = self.ctl("ls")
            self.assertIn(point["id"][:12],
                          page.wait_for("hottest", point["id"][:12]))
            self.ctl("drop", point["id"])
            page.wait_for("removed-dropped", "1")
            page.wait_for("restore_points", "0")
            self.store.stop()
            page.wait_for("live", "not reachable; figures of ")


if __name__ == "__main__":
    if "StatusPageInBrowser" in sys.argv:
        skip_without_browser()
    system_support.main("STORE_CLIENT")
