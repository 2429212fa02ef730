"""Checks the house rules. Each finding is one line: `file:line: what, why`.

Usage: tidy.py ROOT        checks the tree, exits 1 if anything was found
       tidy.py --self-test checks that bad fixtures are reported and good ones are not
"""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from tidy_names import check_names  # noqa: E402
from tidy_rules import (  # noqa: E402
    check_arrows, check_classes, check_patterns, check_registered, check_shape, check_words)

SKIPPED = {".git", ".venv", ".deps", ".clients", "build", "models", "__pycache__"}
SUFFIXES = {".cc", ".h", ".py", ".sh", ".proto", ".cmake"}
NAMES = {"CMakeLists.txt", "hearth"}


def read_tree(root):
    """Returns {relative path: lines} of all files that the rules check."""
    files = {}
    for folder, names, leaves in os.walk(root):
        names[:] = sorted(n for n in names if n not in SKIPPED and not n.startswith("build-"))
        for leaf in sorted(leaves):
            if leaf in NAMES or pathlib.Path(leaf).suffix in SUFFIXES:
                path = pathlib.Path(folder, leaf)
                relative = path.relative_to(root).as_posix()
                files[relative] = path.read_text(encoding="utf-8").splitlines()
    return files


def check(root):
    files = read_tree(root)
    findings = []
    for rule in (check_shape, check_arrows, check_classes, check_words, check_patterns,
                 check_registered, check_names):
        findings += rule(files)
    return sorted(findings)


def main():
    if sys.argv[1:] == ["--self-test"]:
        from tidy_self_test import self_test
        return self_test(check)
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    findings = check(pathlib.Path(sys.argv[1]))
    for path, line, text in findings:
        print(f"{path}:{line}: {text}")
    print(f"tidy: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
