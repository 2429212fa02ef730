"""The classes of C++ files, by counting braces: how many methods and fields each has, and in which
files its methods are defined."""

import re

from tidy_functions import TOKEN, _blank

HEAD = re.compile(r"\b(class|struct|union|enum(?:\s+(?:class|struct))?|namespace|extern)\b")
TYPE_NAME = re.compile(r"\b(?:class|struct|union)\s+(?:ABSL_\w+\s+|alignas\([^()]*\)\s+)*([\w:]+)")
NOT_MEMBER = re.compile(r"^\s*(friend|using|typedef|static_assert|template\s*$)\b")
ACCESS = re.compile(r"\b(public|protected|private)\s*:(?!:)")
MACRO = re.compile(r"\b(ABSL_[A-Z_]+|alignas|noexcept|decltype)\s*\((?:[^()]|\([^()]*\))*\)")


DEFINED = re.compile(  # of the text before the parameters, template arguments left out
    r"^(?:[\w:<>,&*~\[\]\s]*[\s&*])?(\w+)(?:::\w+)*::(?:~?\w+|operator[^\s(]*)\s*$")


class Class:
    """One definition: where it is, and what it has."""

    def __init__(self, name, line, is_local):
        self.name, self.line, self.is_local = name, line, is_local
        self.methods, self.fields = 0, 0


def _strip_templates(text):
    """Without what stands in angle brackets: `std::function<void()> f` is a field."""
    kept, depth = [], 0
    for i, mark in enumerate(text):
        if mark == "<" and re.search(r"[\w>]\s*$", text[:i]) and "operator" not in text[:i][-10:]:
            depth += 1
        elif mark == ">" and depth and text[i - 1] != "-":
            depth -= 1
        elif not depth:
            kept.append(mark)
    return "".join(kept)


def _add_member(owner, head):
    head = ACCESS.sub(" ", head).strip()
    if not head or NOT_MEMBER.match(head) or HEAD.match(head):
        return
    text = _strip_templates(MACRO.sub(" ", head))
    before_value = text.split("=")[0] if "operator" not in text else text
    if "(" in before_value:
        owner.methods += 1
    elif not re.match(r"\s*(static\s+)?constexpr\b|\s*static\b", text):
        owner.fields += 1 + re.sub(r"\([^()]*\)|\{[^{}]*\}", "", text).count(",")


def classes(lines):
    """[Class] of the file, nested ones too. `is_local`: in an unnamed namespace or a function."""
    text = TOKEN.sub(_blank, "\n".join(lines))
    found, stack, head_start = [], [], 0  # of (kind, Class or None)
    for match in re.finditer(r"[{};]", text):
        mark, at = match[0], match.start()
        head = text[head_start:at]
        owner = stack[-1][1] if stack and stack[-1][0] == "class" else None
        if mark == "{":
            kind = HEAD.search(ACCESS.sub(" ", head).split("(")[0] if "(" in head else head)
            name = TYPE_NAME.search(head)
            if kind and kind[1] in ("class", "struct", "union") and name:
                is_local = any(entry[0] in ("unnamed", "code") for entry in stack)
                outer = owner.name + "::" if owner else ""
                line = text.count("\n", 0, at) + 1
                found.append(Class(outer + name[1], line, is_local))
                stack.append(("class", found[-1]))
            elif kind and kind[1] == "namespace":
                is_unnamed = re.search(r"\bnamespace\s*$", head)
                stack.append(("unnamed" if is_unnamed else "namespace", None))
            else:
                if owner is not None and not (kind and kind[1].startswith("enum")):
                    _add_member(owner, head)
                    if "(" not in _strip_templates(MACRO.sub(" ", head)):
                        stack.append(("value", None))  # the field's, up to its semicolon
                        continue
                stack.append(("code", None))
        elif mark == "}":
            kind = stack.pop()[0] if stack else "code"
            if kind == "value":
                stack.append(("ending", None))
        elif stack and stack[-1][0] == "ending":
            stack.pop()
        elif owner is not None:
            _add_member(owner, head)
        if not (stack and stack[-1][0] == "ending"):
            head_start = match.end()
    return found


def homes(lines):
    """Names of the classes whose methods are defined at the file's top level."""
    text = TOKEN.sub(_blank, "\n".join(lines))
    found, depth, opened, head_start = set(), 0, [], 0
    for match in re.finditer(r"[{};]", text):
        mark, head = match[0], text[head_start:match.start()]
        if mark == "{":
            is_namespace = bool(re.search(r"\bnamespace\b[^()]*$", head)) and depth == 0
            opened.append(is_namespace)
            if depth == 0 and not is_namespace and "(" in head:
                name = DEFINED.match(_strip_templates(head.split("(")[0].strip()))
                if name:
                    found.add(name[1])
            depth += not is_namespace
        elif mark == "}" and opened:
            depth -= not opened.pop()
        head_start = match.end()
    return found
