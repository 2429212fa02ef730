"""Checks that docs/reference/reference.md equals what the programs print: flags and metrics.

HEARTH_WRITE_REFERENCE=1 in the environment writes the page instead.
"""

import os
import pathlib
import re
import subprocess
import urllib.request

import system_support
from system_support import ROOT, SystemTest, prompt

PAGE = ROOT / "docs/reference/reference.md"
HEAD = """# Reference

Generated from what the programs print: `hearthctl reference`, `--reference` of the other programs,
and their metrics. `HEARTH_WRITE_REFERENCE=1 ctest --test-dir build -R system_reference` writes this
page; without the variable the test compares it. [HTTP fields](http-fields.md) is generated too.
[Python](../python.md#programs) has the flags of the Python package's programs.

A server reads each flag `--some-name` also from the file of `--config` (TOML or INI), as
`some-name = "..."`. The command line overrides the environment, and the environment overrides
the file.

Exit codes of hearthctl and hearth-simulate: 0 done; 1 failed, or a difference or damage was found;
2 wrong usage; 3 the server was not reached; 130 interrupted. Exit codes of the servers: 0 after a
drain; 1 the start or the device failed; 2 wrong usage.

"""
PROGRAMS = [("hearth-store", "--reference"), ("hearth-worker", "--reference"),
            ("hearth-simulate", "--reference"), ("hearthctl", "reference")]
# (end of the metric's name before "_total", unit)
UNITS = [("_bytes", "bytes"), ("_seconds", "seconds"), ("_us", "microseconds"),
         ("_tokens", "tokens"), ("_restore_points", "restore points"), ("_objects", "objects")]


def unit_of(name):
    bare = name.removesuffix("_total")
    return next((unit for end, unit in UNITS if bare.endswith(end)), "")


def metrics_table(server, page):
    """Makes the Markdown table of the metrics on a /metrics page."""
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", page, re.M))
    rows = [f"## Metrics of {server}\n", "| metric | kind | unit | labels | meaning |",
            "| --- | --- | --- | --- | --- |"]
    for name, meaning in sorted(re.findall(r"^# HELP (\w+) (.*)$", page, re.M)):
        labels = {label for found in re.findall(rf"^{name}(?:_bucket)?\{{(.*)\}} ", page, re.M)
                  for label in re.findall(r'(\w+)="', found)} - {"le"}
        rows.append(f"| `{name}` | {kinds[name]} | {unit_of(name)} | {', '.join(sorted(labels))} | "
                    f"{meaning} |")
    return "\n".join(rows) + "\n"


class Reference(SystemTest):

    def page_of(self, server):
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(server.url("metrics") + "/metrics", timeout=240) as page:
            return page.read().decode()

    def pages(self):
        """Returns the /metrics pages of a store and a worker, after calls that make each metric
        appear."""
        store = self.cluster.store(self.folder / "data", pages=("metrics",))
        model = self.model()
        worker = self.worker(model, store.address, pages=("metrics",))
        self.cluster.generate(worker.address, prompt(100, 1), "--wait-published")
        self.cluster.generate(self.worker(model, store.address).address, prompt(100, 1))
        self.cluster.ctl("drop", "--all", "--store", store.address)
        self.cluster.generate(worker.address, prompt(90, 2))
        return self.page_of(store), self.page_of(worker)

    def test_page_equals_program_output(self):
        # HOME is replaced, because some defaults are below the user's home folder.
        said = [subprocess.run([pathlib.Path(system_support.BIN_DIR) / program, how], check=True,
                               capture_output=True, text=True, timeout=240,
                               env={**os.environ, "HOME": "~"}).stdout
                for program, how in PROGRAMS]
        store, worker = self.pages()
        page = HEAD + "\n".join(said + [metrics_table("hearth-store", store),
                                        metrics_table("hearth-worker", worker)])
        if os.environ.get("HEARTH_WRITE_REFERENCE"):
            PAGE.write_text(page)
        self.maxDiff = None
        self.assertEqual(PAGE.read_text(), page)


if __name__ == "__main__":
    system_support.main()
