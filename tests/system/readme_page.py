"""Parses the commands and outputs of a page, and compares real output with the shown output.

Kinds of fenced blocks: `sh`: one command on each line. `console`: a session; lines that begin with
"$ " are commands; a line that begins with `^C`, and the text after chat's prompt, are typed.
`text`: no commands. In shown output, `...` matches any text and, alone on a line, any lines; a time
matches any time, an id any id, and spaces any number of spaces.
"""

import dataclasses
import re

BLOCK = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.M)
SPAN = re.compile(r"`([^`]+)`")
COMMAND = re.compile(r"(?:\$|git|docker|kubectl|\./hearth|(?:\S*/)?hearth(?:ctl|-store|-worker)) ")
# hearthctl chat prints this when it reads keys. The terminal itself would echo keys sent before
# that.
READS_KEYS = r"\x1b\[\?2004h"
TYPED = re.compile(r"(you> )(.+)|\^C.*")
SERVER_LOG = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z (?:debug|info|warning|error) .*\n")
UNIT = "(?:ns|us|ms|s|min|h|d)"
TIME = re.compile(rf"\d[\d.]* {UNIT}(?!\w)")
ID = re.compile(r"\b[0-9a-f]{12}\b")


@dataclasses.dataclass
class Step:
    """One command of a page, and its shown output."""

    line: int
    command: str
    shown: list[str] = dataclasses.field(default_factory=list)

    def is_interrupted(self):
        return any(line.startswith("^C") for line in self.shown)

    def keys(self):
        """Returns the keys to type while the command runs: (line to wait for, pattern after the
        line, keys)."""
        before, keys = None, []
        for line in self.shown:
            typed = TYPED.fullmatch(line)
            if typed:
                prompt, text = typed.groups()
                keys.append((before, READS_KEYS if prompt else "", text + "\r" if text else "\x03"))
            before = None if typed or line == "..." else line
        return keys


def _plain_pattern(text):
    found = TIME.search(text) or ID.search(text)
    if found is None:
        return r"\s+".join(map(re.escape, re.split(r"\s+", text)))
    stands_for = "[0-9a-f]{12}" if ID.fullmatch(found[0]) else rf"\d[\d.]* {UNIT}"
    return _plain_pattern(text[:found.start()]) + stands_for + _plain_pattern(text[found.end():])


def line_pattern(shown):
    """Returns a regular expression for lines that match the shown line."""
    return ".*".join(map(_plain_pattern, shown.strip().split("...")))


def is_as_shown(shown, lines):
    """Whether output `lines` match the shown lines. Log lines of background servers are ignored."""
    pattern = "".join("(?:.*\n)*" if line == "..." else line_pattern(line) + "\n"
                      for line in shown)
    text = SERVER_LOG.sub("", "".join(line + "\n" for line in lines))  # also inside a line
    text = "".join(line.strip() + "\n" for line in text.splitlines())
    return re.fullmatch(pattern + r"\n*", text) is not None


def _session(text, line):
    steps = []
    for number, shown in enumerate(text.splitlines(), line):
        if shown.startswith("$ "):
            steps.append(Step(number, shown[2:]))
        elif not steps:
            raise ValueError(f"line {number}: output before the first command")
        else:
            steps[-1].shown.append(shown)
        if shown.startswith("^C") and steps[-1].keys()[-1][0] is None:
            raise ValueError(f"line {number}: ^C behind no line that says when")
    return steps


def steps_of(page):
    """Returns the page's commands in order. Raises ValueError for a block without a known kind."""
    steps = []
    for block in BLOCK.finditer(page):
        kind, text = block.groups()
        line = page.count("\n", 0, block.start()) + 2
        if kind == "console":
            steps += _session(text, line)
        elif kind == "sh":
            steps += [Step(number, command) for number, command
                      in enumerate(text.splitlines(), line) if command]
        elif kind != "text":
            raise ValueError(f"line {line - 1}: a block is sh, console or text, not '{kind}'")
        elif any(map(COMMAND.match, text.splitlines())):
            raise ValueError(f"line {line - 1}: a block of text has a command")
    return steps


def commands_in_sentences(page):
    """Returns the commands in code spans outside of blocks."""
    spans = SPAN.findall(BLOCK.sub("", page))
    return [" ".join(span.split()) for span in spans if COMMAND.match(span)]
