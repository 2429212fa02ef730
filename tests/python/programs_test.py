"""The programs of the package: their help, and their flags in docs/python.md."""

import os
import re
import subprocess
import sys
import unittest

import python_support
from python_support import LONG_S, PACKAGE, ROOT

# {module: required flags}
PROGRAMS = {"hearth_cache.ask": ("--context", "a", "--questions", "b"), "hearth_cache.events": ()}


def run(module, *words):
    return subprocess.run([sys.executable, "-B", "-m", module, *words], timeout=LONG_S, text=True,
                          env={**os.environ, "PYTHONPATH": str(PACKAGE)}, capture_output=True,
                          check=False)


class Programs(unittest.TestCase):

    def test_help_shows_examples_and_version(self):
        for module in PROGRAMS:
            shown = run(module, "--help")
            self.assertEqual(shown.returncode, 0, shown.stderr)
            self.assertIn(f"examples:\n  python -m {module}", shown.stdout)
            self.assertRegex(run(module, "--version").stdout, r"^\d+\.\d+\.\d+\S*\n$")

    def test_documented_flags_match_programs(self):
        page = (ROOT / "docs" / "python.md").read_text()
        for module in PROGRAMS:
            table = page[page.index(f"`python -m {module}`"):]
            rows = re.findall(r"^\| (`--.*?) \|", table[:table.index("\n\n", table.index("| ---"))],
                              re.M)
            documented = {flag for row in rows for flag in re.findall(r"--[a-z-]+", row)}
            flags = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", run(module, "--help").stdout, re.M))
            self.assertEqual(documented, flags - {"--help", "--version"}, module)

    def test_unknown_flag_exits_2(self):
        for module, required in PROGRAMS.items():
            done = run(module, *required, "--storm", "a")
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, rf"^{module}: .*--storm.*\n$")


if __name__ == "__main__":
    python_support.main()
