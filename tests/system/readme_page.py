"""The commands of a page, what it shows of their output, and whether an output is as shown.

A fenced block says what it is: `sh`, a command a line; `console`, a session, in which lines that
begin with "$ " are commands, and what is typed is `^C` where a line begins with it, and what stands
behind a prompt of chat; `text`, no commands. In what is shown `...` stands for anything, alone on a
line for any lines; a time for any time, an id for any id; spaces for any number of spaces.
"""

import dataclasses
import re

BLOCK = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.M)
SPAN = re.compile(r"`([^`]+)`")
COMMAND = re.compile(r"(?:\$|git|docker|kubectl|\./hearth|(?:\S*/)?hearth(?:ctl|-store|-worker)) ")
# Chat says so behind its prompt: what is typed sooner is echoed by the terminal too.
READS_KEYS = r"\x1b\[\?2004h"
TYPED = re.compile(r"(you> )(.+)|\^C.*")
SERVER_LOG = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z (?:debug|info|warning|error) .*\n")
UNIT = "(?:ns|us|ms|s|min|h|d)"
TIME = re.compile(rf"\d[\d.]* {UNIT}(?!\w)")
ID = re.compile(r"\b[0-9a-f]{12}\b")


@dataclasses.dataclass
class Step:
    """One command of a page, and the lines shown below it."""

    line: int
    command: str
    shown: list[str] = dataclasses.field(default_factory=list)

    def is_interrupted(self):
        return any(line.startswith("^C") for line in self.shown)

    def keys(self):
        """What is typed while the command runs: (the line before it, what then comes, keys)."""
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
    """Of the lines that are as the shown one."""
    return ".*".join(map(_plain_pattern, shown.strip().split("...")))


def is_as_shown(shown, lines):
    """`lines`: an output's. What a server in the background logged is none of it."""
    pattern = "".join("(?:.*\n)*" if line == "..." else line_pattern(line) + "\n"
                      for line in shown)
    text = SERVER_LOG.sub("", "".join(line + "\n" for line in lines))  # even within a line
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
    """Its commands, in order. Raises ValueError where a block does not say what it is."""
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
    """Those in code spans, outside of blocks."""
    spans = SPAN.findall(BLOCK.sub("", page))
    return [" ".join(span.split()) for span in spans if COMMAND.match(span)]
