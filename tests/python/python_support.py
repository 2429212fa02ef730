"""Shared by tests of the Python package: imports the built package and tests/system.

Run as: python NAME_test.py PACKAGE BIN_DIR WRITE_CHECKPOINT [unittest arguments]. If the folder
PACKAGE has no package (scripts/python_package.sh makes it), the exit code is 77, which ctest shows
as skipped.
"""

import pathlib
import shutil
import sys

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "system"))
SKIPPED = 77
TOKENIZER = TESTS / "data" / "tiny_tokenizer" / "tokenizer.model"
TEXT_VOCABULARY = 700  # the tokenizer's

if not pathlib.Path(sys.argv[1], "hearth_cache").is_dir():
    print(f"skipped, hearth_cache is not in {sys.argv[1]}: scripts/python_package.sh")
    sys.exit(SKIPPED)
PACKAGE = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(PACKAGE))

import system_support  # noqa: E402  (paths set above)
from system_support import CHUNK_TOKENS, LONG_S, ROOT, SystemTest, prompt  # noqa: E402


class PythonTest(SystemTest):
    def text_model(self, **geometry):
        """Makes a tiny model with a tokenizer; returns its folder."""
        folder = self.model(vocabulary=TEXT_VOCABULARY, **geometry)
        shutil.copy(TOKENIZER, folder)
        return folder


main = system_support.main

__all__ = ["CHUNK_TOKENS", "LONG_S", "PACKAGE", "PythonTest", "ROOT", "main", "prompt"]
