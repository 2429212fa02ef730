"""Finds the messages of a source file, as they are printed.

A message is the joined literals of one expression, with * for each value. Of alternatives
(`a ? "x" : "y"`) it has the first with a literal. A flag's help or a counter's text begins with
the name that is its first argument. Suffixes, which another place appends, are left out.
"""

import ast
import re

from cpp_tokens import TOKEN, line_of

NAME = re.compile(r"-{0,2}[a-z][\w.,-]*")
SUFFIX = tuple(" ;:,.)")
CODE = re.compile(r"^<|\\b|\$\{|=\*|==\d|\bimport \w+$|\(\) \{")

OPEN, CLOSE = "([{", ")]}"
# Functions that print their arguments, one after the other.
JOIN = {"StrCat", "StrAppend", "string", "string_view"}
JOIN_DEFINED = re.compile(r"(\w+)\(const (\w+)&\.\.\. (\w+)\) \{\s*return [\w:]+\([\w:]*StrCat\(\3")
# Functions whose first argument is a format.
FORMAT = {"StrFormat", "Substitute"}
CPP_VALUE = re.compile(r"%[-+0 #]*[\d.*]*[a-zA-Z]|\$\d")
PERCENT_VALUE = re.compile(r"%[-+0 #]*[\d.*]*[diouxXeEfFgGcrs]")
SHELL_TEXT = re.compile(r'"((?:\\.|\$\((?:[^()\n]|\([^()\n]*\))*\)|[^"\\\n])*)"')
SHELL_VALUE = re.compile(r"\$\((?:[^()]|\([^()]*\))*\)|\$\{[^}]*\}|\$\w+|\$[#*@?]")


class Group(list):
    """The content of one pair of brackets: tokens (line, kind, text), and nested groups."""

    def __init__(self, bracket=""):
        super().__init__()
        self.bracket = bracket


def _is(token, *words):
    return not isinstance(token, Group) and token[1] == "word" and token[2] in words


def _groups(text):
    stack = [Group()]
    for match in TOKEN.finditer(text):
        word = match["word"]
        if word and word in OPEN:
            stack.append(Group(word))
            stack[-2].append(stack[-1])
        elif word and word in CLOSE:
            if len(stack) > 1:
                stack.pop()
        elif match["skip"] is None:
            kind = "word" if word else "text"
            stack[-1].append((line_of(text, match.start()), kind, match[kind]))
    return stack[0]


def _split(tokens, *words):
    parts = [[]]
    for token in tokens:
        if _is(token, *words):
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


class _Cpp:
    """Finds the messages of a C++ file."""

    def __init__(self, text):
        self._join = JOIN | {match[1] for match in JOIN_DEFINED.finditer(text)}
        self._root = _groups(text)

    def found(self):
        yield from self._of(self._root)

    def _of(self, group):
        for part in _split(group, ";"):
            name = ""
            for expression in _split(part, ","):
                for line, text in self._texts(expression):
                    if NAME.fullmatch(text):
                        name = text
                    else:
                        yield line, f"{name}: {text}" if name else text
                yield from self._inside(expression)

    def _texts(self, expression):
        """Yields (line, text) of the alternatives of an expression that have a literal."""
        starts = [at for at, token in enumerate(expression) if _is(token, "return", "=", "+=")]
        code = expression[starts[-1] + 1:] if starts else expression
        is_choice = any(_is(token, "?") for token in code)
        for each in _split(code, "?", ":")[1:] if is_choice else [code]:
            line, text = self._joined(each)
            if line and text and not text.startswith(SUFFIX):
                yield line, text

    def _inside(self, expression):
        """Yields the messages in brackets that are not part of a joined text."""
        for at, token in enumerate(expression):
            if isinstance(token, Group):
                is_joined = token.bracket != "{" and self._joined(
                    expression[max(at - 1, 0):at + 1])[0]
                if not is_joined:
                    yield from self._of(token)

    def _joined(self, tokens):
        """Returns (line of the first literal, text); (0, "*") if there is no literal."""
        if any(_is(token, "?") for token in tokens):
            for part in _split(tokens, "?", ":")[1:]:
                line, text = self._joined(part)
                if line:
                    return line, text
            return 0, "*"
        return self._concatenated([self._piece(part) for part in _split(tokens, "+", "<<")])

    @staticmethod
    def _concatenated(pieces):
        line = next((line for line, _ in pieces if line), 0)
        return (line, "".join(text for _, text in pieces)) if line else (0, "*")

    def _piece(self, tokens):
        if tokens and all(not isinstance(token, Group) and token[1] == "text" for token in tokens):
            return tokens[0][0], "".join(token[2] for token in tokens)
        if not tokens or not isinstance(tokens[-1], Group) or tokens[-1].bracket == "[":
            return 0, "*"
        if len(tokens) == 1:
            return self._joined(tokens[0]) if tokens[0].bracket == "(" else (0, "*")
        name = "" if isinstance(tokens[-2], Group) else tokens[-2][2].split("::")[-1]
        parts = _split(tokens[-1], ",")
        if name in FORMAT:
            line, text = self._joined(parts[0])
            return line, CPP_VALUE.sub("*", text)
        if name in self._join:
            return self._concatenated([self._joined(part)
                                       for part in parts[1 if name == "StrAppend" else 0:]])
        return 0, "*"


def _python_joined(node):
    """Returns the text of a Python expression; None if it has no literal."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "*"
                       for part in node.values)
    if isinstance(node, ast.IfExp):
        texts = (_python_joined(node.body), _python_joined(node.orelse))
        return next((text for text in texts if text), None)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        texts = _python_joined(node.left), _python_joined(node.right)
        return None if texts == (None, None) else "".join("*" if text is None else text
                                                          for text in texts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        text = _python_joined(node.left)
        return text and PERCENT_VALUE.sub("*", text)
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "format":
        text = _python_joined(node.func.value)
        return text and re.sub(r"\{[^}]*\}", "*", text)
    return None


def _python(node):
    """Yields (line, text) of the expressions inside a syntax node."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.IfExp):
        text = None
    else:
        text = _python_joined(node)
    if text is not None:
        yield node.lineno, text
        return
    name = node.args[0] if isinstance(node, ast.Call) and node.args else None
    name = name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else ""
    for child in ast.iter_child_nodes(node):
        for line, text in _python(child):
            named = NAME.fullmatch(name) and isinstance(child, (ast.Constant, ast.JoinedStr,
                                                                ast.BinOp, ast.keyword))
            yield line, f"{name}: {text}" if named and text != name else text


def _shell(text):
    for number, line in enumerate(text.splitlines(), 1):
        if not line.lstrip().startswith("#"):
            for match in SHELL_TEXT.finditer(line):
                yield number, SHELL_VALUE.sub("*", match[1])


def messages(path, text):
    """Yields (line, message) of each message of a file; equal messages once."""
    if path.endswith(".py"):
        found = _python(ast.parse(text))
    elif path.endswith((".sh", "hearth")):
        found = _shell(text)
    else:
        found = ((line, each.replace("\\n", " ").replace('\\"', '"'))
                 for line, each in _Cpp(text).found())
    listed = set()
    for line, each in found:
        if each not in listed and not each.startswith(SUFFIX) and not CODE.search(each) and (
                "\n" not in each.strip()):
            listed.add(each)
            yield line, " ".join(each.split())
