"""The README and docs/ keep their word: links lead somewhere, metrics and commands exist."""
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request

import manifests as m

sys.path.insert(0, str(m.ROOT / "tests"))

import tidy  # noqa: E402
import tidy_names  # noqa: E402
import tidy_rules  # noqa: E402

ALL_METRICS = tidy_names.metrics(tidy.read_tree(m.ROOT))
PAGES = sorted((m.ROOT / "docs").glob("*.md")) + [m.ROOT / "README.md"]


def headings(page):
    """The anchors that a page's headings have on a forge."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in found}


def broken_links(page, text):
    broken = []
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        file = page if not path else (page.parent / path)
        if not file.exists() or (anchor and anchor not in headings(file)):
            broken.append(target)
    return broken


def documented_metrics(server):
    """Names in operations.md's rows about `server`: whole, or as an end like `_hits_total`."""
    names = set()
    for line in (m.ROOT / "docs/operations.md").read_text().splitlines():
        if line.startswith(f"| `{server}_"):
            for name in re.findall(r"`([a-z_]+)(?:\{[a-z,]+\})?`", line.split("|")[1]):
                names.add(server + name if name.startswith("_") else name)
    return names


def metrics_in_the_source(server):
    return {name for name in ALL_METRICS if name.startswith(server + "_")}


def missing_files(text):
    """Paths in code spans, of source files without their end, that lead nowhere."""
    paths = re.findall(r"`((?:proto|cache_store|worker|services|tests|bench|scripts|deploy)"
                       r"/[\w./-]*)`", text)
    return [path for path in paths if not (m.ROOT / path).exists()
            and not list(m.ROOT.glob(path + ".*"))]


def tables_without_header(text):
    """Lines whose row of dashes has no row of as many cells above it."""
    lines = [""] + re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text,
                          flags=re.M | re.S).splitlines()
    cells = [len(re.findall(r"(?<!\\)\|", line)) for line in lines]
    return [number for number, line in enumerate(lines)
            if re.fullmatch(r"\|( *:?-+:? *\|)+", line) and cells[number - 1] != cells[number]]


def index_findings(text):
    """Errors in the numbers of decisions, and in the list of them at the page's top."""
    entries = re.findall(r"^## (\d+\..*)$", text, re.M)
    numbers = [int(entry.split(".")[0]) for entry in entries]
    listed = re.findall(r"^- \[(\d+\..*)\]\(#", text, re.M)
    return ([f"twice: {number}" for number in sorted(set(numbers)) if numbers.count(number) > 1] +
            [f"listed {listed.count(entry)} times: {entry}" for entry in entries
             if listed.count(entry) != 1] +
            [f"no decision: {entry}" for entry in listed if entry not in entries])


class DocsTest(unittest.TestCase):

    def test_every_link_leads_somewhere(self):
        for page in PAGES:
            self.assertEqual(broken_links(page, page.read_text()), [], page.name)

    def test_every_table_has_a_header(self):
        for page in PAGES:
            self.assertEqual(tables_without_header(page.read_text()), [], page.name)
        table = "| a | b |\n| --- | --- |\n"
        self.assertEqual(tables_without_header(table + "\n| --- | --- |\n| a |\n| --- | --- |\n"
                                               "```\n| --- |\n```\n"), [4, 6])

    def test_readme_lists_every_page(self):
        text = (m.ROOT / "README.md").read_text()
        listed = re.findall(r"^\| .*$", text[text.index("## Where to go next"):], re.M)
        for page in PAGES:
            if page.parent.name == "docs":
                self.assertIn(f"(docs/{page.name})", "".join(listed), page.name)

    def test_a_broken_link_is_seen(self):
        page = m.ROOT / "README.md"
        text = "[a](docs/gone.md) [b](docs/operations.md#gone) [c](LICENSE)"
        self.assertEqual(broken_links(page, text), ["docs/gone.md", "docs/operations.md#gone"])

    def test_the_store_serves_the_metrics_that_its_source_names(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            store = subprocess.Popen(
                [str(m.BIN / "hearth-store"), "--listen", "127.0.0.1:0", "--metrics-listen",
                 "127.0.0.1:0", "--metrics-address-file", str(folder / "metrics"), "--data-dir",
                 str(folder / "data"), "--host-bytes", "64MiB", "--disk-bytes", "64MiB"],
                stderr=subprocess.PIPE, text=True)
            try:
                for line in store.stderr:
                    if " ready " in line:
                        break
                address = (folder / "metrics").read_text().strip()
                subprocess.run([str(m.BIN / "hearthctl"), "stats", "--store",
                                re.search(r"address=(\S+)", line).group(1)],
                               check=True, capture_output=True, timeout=60)
                direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
                with direct.open(f"http://{address}/metrics", timeout=30) as page:
                    text = page.read().decode()
            finally:
                store.send_signal(signal.SIGTERM)
                store.communicate(timeout=60)
            self.assertEqual(store.returncode, 0)
        # Of those of the gpu tier the counters are there always.
        served = set(re.findall(r"^# TYPE (\w+)", text, re.M))
        self.assertEqual(served, metrics_in_the_source("hearth_store"))

    def test_the_reference_has_every_metric_and_operations_none_that_is_not_there(self):
        reference = (m.ROOT / "docs/reference.md").read_text()
        for server in ("hearth_store", "hearth_worker"):
            found = set(re.findall(rf"^\| `({server}_\w+)` \|", reference, re.M))
            self.assertEqual(found, metrics_in_the_source(server))
            self.assertEqual(documented_metrics(server) - found, set())

    def test_files_that_the_pages_name_exist(self):
        for page in PAGES:
            self.assertEqual(missing_files(page.read_text()), [], page.name)
        text = "`proto/fingerprint` `proto/fingerprint.h` `proto/` `proto/gone` `services/gone.h`"
        self.assertEqual(missing_files(text), ["proto/gone", "services/gone.h"])

    def test_every_room_is_on_the_page_of_folders(self):
        text = (m.ROOT / "docs/architecture.md").read_text()
        rows = "".join(re.findall(r"^\| .*$", text[text.index("## Folders"):], re.M))
        for room in tidy_rules.ROOMS:
            self.assertTrue(f"`{room.split('/')[-1]}/`" in rows or f"`{room}/`" in rows, room)

    def test_the_page_of_folders_names_files_that_exist(self):
        sources = {path.stem for top in tidy_names.FOLDERS for path in (m.ROOT / top).rglob("*.*")}
        text = (m.ROOT / "docs/architecture.md").read_text()
        section = text[text.index("## Folders"):text.index("## Life of a request")]
        rows = "".join(re.findall(r"^\| .*$", section, re.M))
        self.assertEqual(set(re.findall(r"`([a-z_]+)`", rows)) - sources, set())

    def test_metrics_that_the_pages_name_exist(self):
        for page in PAGES:
            named = set(re.findall(r"\bhearth_(?:store|worker)_\w+_(?:total|seconds|bytes)\b",
                                   page.read_text()))
            self.assertEqual(named - set(ALL_METRICS), set(), page.name)

    def test_each_decision_is_in_the_index_once(self):
        text = (m.ROOT / "docs/decisions.md").read_text()
        self.assertGreater(len(re.findall(r"^## \d", text, re.M)), 160)
        self.assertEqual(index_findings(text), [])

    def test_a_wrong_index_is_seen(self):
        text = ("- [1. A](#1-a)\n- [1. A](#1-a)\n- [2. C](#2-c)\n"
                "## 1. A\n## 2. E\n## 3. B\n## 2. D\n")
        self.assertEqual(index_findings(text), [
            "twice: 2", "listed 2 times: 1. A", "listed 0 times: 2. E", "listed 0 times: 3. B",
            "listed 0 times: 2. D", "no decision: 2. C"])

    def test_commands_that_the_pages_show_exist(self):
        known = m.help_text("hearthctl")
        for page in PAGES:
            # In a code span, or where a command line begins.
            shown = re.findall(r"(?:`|^|/|-- )hearthctl\s+([a-z]+)\b", page.read_text(), re.M)
            for command in shown:
                self.assertRegex(known, rf"(?m)^\s+{command}\b", f"{page.name}: {command}")


if __name__ == "__main__":
    unittest.main()
