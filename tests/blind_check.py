#!/usr/bin/env python3
"""Draws 60 comments, 60 messages and 60 test names for a reader who has not seen the code.

The reader writes below each line its meaning, and whether it was clear at first reading, and then
compares with the code at the places that --places prints. The hash of the commit is the seed, so
the lines cannot be chosen.
"""

import argparse
import ast
import io
import pathlib
import random
import re
import subprocess
import sys
import tarfile
import tokenize

import blind_messages
from cpp_tokens import TOKEN, line_of

C_FAMILY = (".cc", ".h", ".cu", ".cuh", ".proto")
MESSAGE_FOLDERS = ("proto", "cache_store", "worker", "services", "python", "scripts", "hearth")
WORDS_MIN = 4
WORD = re.compile(r"[A-Za-z]{2,}")
NO_PROSE = re.compile(r"^(clang-format|NOLINT|namespace|noqa|type:|!)|Copyright|SPDX")
STATEMENT_LINES = 4
CONTINUES = re.compile(r"[.?+<=|&)\]]|->|:(?!:)|-\s")
GTEST = re.compile(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.M)


def tree_of(commit):
    """Returns {path: text} of the commit's source files."""
    archive = subprocess.run(["git", "archive", commit], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        found = {file.name: tar.extractfile(file).read() for file in tar if file.isfile()}
    return {path: text.decode() for path, text in sorted(found.items())
            if pathlib.Path(path).suffix in (*C_FAMILY, ".py", ".sh") or path == "hearth"}


def comment_marks(path, text):
    """Yields (line, column, text) of each line with a comment."""
    if path.endswith(C_FAMILY):
        for match in TOKEN.finditer(text):
            if (match["skip"] or "").startswith("//"):
                column = match.start() - text.rfind("\n", 0, match.start()) - 1
                yield line_of(text, match.start()), column, match[0].lstrip("/")
    elif path.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield *token.start, token.string.lstrip("#")
    else:
        for number, line in enumerate(text.splitlines(), 1):
            if match := re.match(r"(\s*)#(?!!)(.*)", line):
                yield number, len(match[1]), match[2]


def statement(code, at):
    """Returns line `at` of the code, joined with the other lines of its statement; at most
    STATEMENT_LINES before and after."""
    def depth(text):
        return text.count("(") + text.count("[") - text.count(")") - text.count("]")

    first, last, text = at, at, code[at]
    while 0 < first and at - first < STATEMENT_LINES and code[first - 1] and (
            depth(text) < 0 or CONTINUES.match(text)):
        first -= 1
        text = f"{code[first]} {text}"
    while last + 1 < len(code) and last - at < STATEMENT_LINES and depth(text) > 0:
        last += 1
        text = f"{text} {code[last]}"
    return re.sub(r"(?<=[(\[]) | (?=[)\].])", "", text)


def comments(path, text):
    """Yields (line, comment, its statement). Consecutive comment lines are one comment."""
    code, blocks = text.splitlines(), []
    for line, column, words in comment_marks(path, text):
        is_own_line = not code[line - 1][:column].strip()
        code[line - 1] = code[line - 1][:column]
        if blocks and is_own_line and words.strip() and blocks[-1][1:3] == [line - 1, column]:
            blocks[-1][1] = line
            blocks[-1][3] += " " + words.strip()
        else:
            blocks.append([line, line, column, words.strip()])
    code = [line.strip() for line in code]
    for first, _, _, words in blocks:
        at = next((at for at in range(first - 1, len(code)) if code[at]), None)
        yield first, words, "" if at is None else statement(code, at)
    if path.endswith(".py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                if doc := ast.get_docstring(node):
                    shown = statement(code, node.lineno - 1)
                    yield node.body[0].lineno, " ".join(doc.split()), shown


def messages(path, text):
    """Yields (line, message, "") of texts in errors, log lines and help."""
    if path.split("/")[0] in MESSAGE_FOLDERS:
        for line, message in blind_messages.messages(path, text):
            yield line, message, ""


def test_names(path, text):
    """Yields (line, "Suite.Name", "") of each test."""
    for match in GTEST.finditer(text):
        yield line_of(text, match.start()), f"{match[1]}.{match[2]}", ""
    if path.startswith("tests/") and path.endswith("_test.py"):
        for suite in ast.walk(ast.parse(text)):
            for node in suite.body if isinstance(suite, ast.ClassDef) else ():
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    yield node.lineno, f"{suite.name}.{node.name}", ""


def is_prose(text):
    words = [word for word in text.split() if WORD.search(word)]
    return len(words) >= WORDS_MIN and not NO_PROSE.search(text)


def drawn(commit, count):
    """Yields (title, [("path:line", text, code)]) of each kind, with at most `count` entries."""
    tree, source = tree_of(commit), random.Random(commit)
    for title, kind in (("Comments", comments), ("Messages", messages),
                        ("Test names", test_names)):
        all_lines = [(f"{path}:{line}", words, code) for path, text in tree.items()
                     for line, words, code in kind(path, text)
                     if kind is test_names or is_prose(words)]
        yield title, source.sample(all_lines, min(count, len(all_lines)))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="commit to draw from; its hash is the seed")
    parser.add_argument("--count", type=int, default=60, help="lines of each kind; default 60")
    parser.add_argument("--places", action="store_true",
                        help="print FILE:LINE of each instead of the form to fill in")
    args = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--verify", args.commit + "^{commit}"],
                            capture_output=True, text=True, check=False)
    if commit.returncode != 0:
        parser.error(f"{args.commit} is not a commit of this repository")
    for title, lines in drawn(commit.stdout.strip(), args.count):
        print(f"## {title}\n")
        for number, (place, words, code) in enumerate(lines, 1):
            print(f"{number}. {place if args.places else words}")
            if not args.places:
                print((f"   - code: `{code}`\n" if code else "") +
                      "   - means:\n   - clear at first reading (yes, no):\n")
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
