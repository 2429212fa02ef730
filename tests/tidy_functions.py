"""Finds where the functions of a C++ file begin and end, by counting braces."""

import re

TOKEN = re.compile(
    r'R"(?P<delimiter>[^(\s]{0,16})\((?:.|\n)*?\)(?P=delimiter)"'  # raw string
    r'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
    r"|//[^\n]*|/\*(?:.|\n)*?\*/"
    r"|^[ \t]*#(?:\\\n|[^\n])*",  # preprocessor line, with its continuations
    re.MULTILINE)
TYPE = re.compile(r"\b(class|struct|union|enum|namespace|extern)\b[^()]*$")


def _blank(match):
    """Returns spaces of the same length, with the newlines, so that line numbers stay the same."""
    return re.sub(r"[^\n]", " ", match[0])


def _name(head):
    match = re.search(r"([\w:~]+)\s*\(", head)
    return match[1] if match else "a function"


def functions(lines):
    """Returns [(name, first line, last line)] of functions; a lambda is part of its function."""
    text = TOKEN.sub(_blank, "\n".join(lines))
    found, depth_inside, start, head_start = [], 0, None, 0
    for match in re.finditer(r"[{};]", text):
        mark, at = match[0], match.start()
        if depth_inside:
            depth_inside += {"{": 1, "}": -1, ";": 0}[mark]
            if depth_inside == 0:
                head, first = start
                found.append((_name(head), first, text.count("\n", 0, at) + 1))
                head_start = at + 1
            continue
        head = text[head_start:at]
        opens = mark == "{" and "(" in head and not head.rstrip().endswith("=")
        if opens and not TYPE.search(head):
            skipped = len(head) - len(head.lstrip())
            start = head, text.count("\n", 0, head_start + skipped) + 1
            depth_inside = 1
        else:
            head_start = at + 1
    return found
