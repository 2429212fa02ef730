"""Finds the classes and functions of C++ files by counting braces: where they are declared, and in
which files functions and methods are defined."""

import re

from tidy_functions import TOKEN, TYPE, _blank

HEAD = re.compile(r"\b(class|struct|union|enum(?:\s+(?:class|struct))?|namespace|extern)\b")
TYPE_NAME = re.compile(r"\b(?:class|struct|union)\s+(?:ABSL_\w+\s+|alignas\([^()]*\)\s+)*([\w:]+)")
ACCESS = re.compile(r"\b(public|protected|private)\s*:(?!:)")
MACRO = re.compile(r"\b(ABSL_[A-Z_]+|alignas|noexcept|decltype)\s*\((?:[^()]|\([^()]*\))*\)")


DEFINED = re.compile(  # the text before the parameters of a method's definition
    r"^(?:[\w:<>,&*~\[\]\s]*[\s&*])?(\w+)(?:::\w+)*::(?:~?\w+|operator[^\s(]*)\s*$")


def _strip_templates(text):
    """Removes angle brackets with their content: `std::function<void()> f` is a field."""
    kept, depth = [], 0
    for i, mark in enumerate(text):
        if mark == "<" and re.search(r"[\w>]\s*$", text[:i]) and "operator" not in text[:i][-10:]:
            depth += 1
        elif mark == ">" and depth and text[i - 1] != "-":
            depth -= 1
        elif not depth:
            kept.append(mark)
    return "".join(kept)


def classes(lines):
    """Returns [(name, line, is_local)] of the file's classes, including nested ones. `is_local`: in
    an unnamed namespace or a function."""
    text = TOKEN.sub(_blank, "\n".join(lines))
    found, stack, head_start = [], [], 0  # open braces: (kind, name of the class)
    for match in re.finditer(r"[{};]", text):
        mark, at = match[0], match.start()
        head = text[head_start:at]
        if mark == "{":
            kind = HEAD.search(ACCESS.sub(" ", head).split("(")[0] if "(" in head else head)
            name = TYPE_NAME.search(head)
            if kind and kind[1] in ("class", "struct", "union") and name:
                is_local = any(entry[0] in ("unnamed", "code") for entry in stack)
                outer = stack[-1][1] + "::" if stack and stack[-1][0] == "class" else ""
                found.append((outer + name[1], text.count("\n", 0, at) + 1, is_local))
                stack.append(("class", outer + name[1]))
            elif kind and kind[1] == "namespace":
                is_unnamed = re.search(r"\bnamespace\s*$", head)
                stack.append(("unnamed" if is_unnamed else "namespace", None))
            else:
                stack.append(("code", None))
        elif mark == "}" and stack:
            stack.pop()
        head_start = match.end()
    return found


def homes(lines):
    """Returns the names defined at the file's top level: (classes whose methods are defined,
    functions that other files may call)."""
    found, functions = set(), set()
    for mark, head, is_unnamed in _top_level(lines):
        if mark != "{" or "(" not in head:
            continue
        before = _strip_templates(head.split("(")[0].strip())
        name = DEFINED.match(before)
        if name:
            found.add(name[1])
        elif not is_unnamed and not re.search(r"\b(static|inline|constexpr|template)\b", head):
            functions.update(re.findall(r"[\s&*](\w+)\s*$", before))
    return found, functions


def declared(lines):
    """Returns the names of functions that a header declares but does not define."""
    found = set()
    for mark, head, _ in _top_level(lines):
        if mark == ";" and "(" in head and not TYPE.search(head) and "= delete" not in head:
            found.update(re.findall(r"[\s&*](\w+)\s*$", _strip_templates(head.split("(")[0])))
    return found


def _top_level(lines):
    """Yields (mark, text before it, whether it is in an unnamed namespace) for each brace and
    semicolon that is only inside namespaces."""
    text = TOKEN.sub(_blank, "\n".join(lines))
    depth, opened, head_start = 0, [], 0
    for match in re.finditer(r"[{};]", text):
        mark, head = match[0], text[head_start:match.start()]
        if depth == 0:
            yield mark, head, "unnamed" in opened
        if mark == "{":
            is_namespace = bool(re.search(r"\bnamespace\b[^()]*$", head)) and depth == 0
            is_unnamed = is_namespace and re.search(r"\bnamespace\s*$", head)
            opened.append("unnamed" if is_unnamed else "named" if is_namespace else "")
            depth += not is_namespace
        elif mark == "}" and opened:
            depth -= not opened.pop()
        head_start = match.end()
