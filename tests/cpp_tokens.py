"""Splits C++ source into tokens, for checks of its texts and comments."""

import re

# A match has one of the groups `skip` (a comment, a directive, a raw string or a static assertion),
# `text` (the content of a string literal) and `word` (any other token).
TOKEN = re.compile(
    r'(?P<skip>//[^\n]*|/\*.*?\*/|^[ \t]*#(?:\\\n|[^\n])*|\bstatic_assert\(.*?\);'
    r'|R"(?P<end>\w*)\(.*?\)(?P=end)")'
    r'|"(?P<text>(?:\\.|[^"\\\n])*)"'
    r"|(?P<word>'(?:\\.|[^'\\\n])+'|\w+(?:(?:::|')\w+)*|<<|[+]=|::|[=!<>]=|\S)", re.S | re.M)


def line_of(text, at):
    return text.count("\n", 0, at) + 1
