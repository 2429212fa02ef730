"""The package with each supported version of protobuf, and under type checkers.

Runs in the environments of scripts/clients.sh; without them, the test is skipped.
"""

import os
import pathlib
import subprocess
import sys
import unittest

import python_support
from python_support import PACKAGE, ROOT, SKIPPED

CLIENTS = pathlib.Path(os.environ.get("HEARTH_CLIENTS", ROOT / ".clients"))
BESIDE = """
import sys
sys.path.insert(0, sys.argv[1])
import proto, google.protobuf, google.rpc.status_pb2
import hearth_cache
print(google.protobuf.__version__)
"""


def run(*argv, **options):
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True,
                          check=False, **options)
    return done.returncode, done.stdout + done.stderr


class Checks(unittest.TestCase):
    def test_calls_work_with_each_protobuf(self):
        for major in (5, 6, 7):
            python = CLIENTS / f"protobuf{major}" / "bin" / "python"
            code, said = run(python, "-W", "error", "-B", "-c", BESIDE, PACKAGE)
            self.assertEqual((code, said[0]), (0, str(major)), said)
            code, said = run(python, "-B", pathlib.Path(__file__).parent / "calls_test.py", PACKAGE,
                             "none", "none")
            self.assertEqual(code, 0, said[-3000:])

    def test_mypy_finds_nothing(self):
        code, said = run(CLIENTS / "typing" / "bin" / "python", "-m", "mypy", "--config-file",
                         ROOT / "python" / "pyproject.toml", "--cache-dir", os.devnull,
                         PACKAGE / "hearth_cache", *sorted((ROOT / "examples").glob("*.py")),
                         env={**os.environ, "MYPYPATH": str(PACKAGE)})
        self.assertEqual(code, 0, said[-3000:])

    def test_pyright_finds_nothing(self):
        bin_dir = CLIENTS / "typing" / "bin"
        (PACKAGE / "pyproject.toml").write_bytes(
            (ROOT / "python" / "pyproject.toml").read_bytes())  # strict
        for folder, what in ((PACKAGE, "hearth_cache"), (ROOT, "examples")):
            code, said = run(bin_dir / "python", "-m", "pyright", "--pythonpath",
                             bin_dir / "python", what, cwd=folder,
                             env={**os.environ, "PYTHONPATH": str(PACKAGE)})
            errors = [line for line in said.splitlines() if " - error:" in line
                      and not ("reportMissingImports" in line and folder == ROOT)]
            self.assertEqual(errors, [], said[-3000:])
            self.assertIn("informations", said)


if __name__ == "__main__":
    if not (CLIENTS / "typing" / "installed").is_file():
        print("skipped, type checkers and others are not installed: scripts/clients.sh")
        sys.exit(SKIPPED)
    python_support.main()
