"""Reads the context and the questions. Each line of questions is a JSON object:

    {"id": "q1", "question": "Which river?"}     inserted into --template, in place of {question}
    {"ending": " and the river is called"}       continues where the context ends; or "prompt"
    {"token_ids": [5, 7], "kind": "ids"}         after a context of token ids

`id` is a text or an integer, by default the line's number; each id occurs once. `kind` is a word
that is copied to the answer. Unknown fields are refused. ValueError names the file, the line and
the error.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, Union

from hearth_cache.v1 import inference_pb2

QUESTION_PLACE = "{question}"
MAX_FILE_BYTES = 12 << 20  # four times the size of the longest request
_TEXT_FIELDS = ("question", "ending", "prompt")
_KNOWN = "known fields: id, kind, question, ending and prompt (texts), and token_ids (a list)"


@dataclass(frozen=True)
class Question:
    id: str
    ending: Union[str, list[int]]  # what the prompt has after the context
    kind: str
    sha256: str  # Digest of the ending and of the options that affect its answer.


@dataclass(frozen=True)
class Context:
    prompt: inference_pb2.PromptInput
    sha256: str  # digest of the context's file


def is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def read_file(path: str) -> bytes:
    """Reads a file with a size limit. `path` "-": standard input."""
    if path == "-":
        data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    else:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"{path} is too long: the limit is {MAX_FILE_BYTES} bytes")
    return data


def text_of(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not valid UTF-8 at byte {error.start}") from None


def read_context(kind: str, path: str) -> Context:
    """Reads the context from a file. `kind`: text, chat or token_ids."""
    data = read_file(path)
    text, sha256 = text_of(data, path), hashlib.sha256(data).hexdigest()
    made = inference_pb2.PromptInput()
    try:
        if kind == "chat":
            made.chat.CopyFrom(parse_chat(text))
        elif kind == "token_ids":
            made.token_ids.ids.extend(parse_token_ids(text))
        else:
            made.text = text
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return Context(made, sha256)


def parse_token_ids(text: str) -> list[int]:
    """Parses 2,3,4 (with spaces and line ends anywhere between) or a JSON list."""
    ids: list[int] = []
    for item in re.findall(r"[^,\s]+", re.sub(r"^\s*\[(.*)\]\s*$", r"\1", text, flags=re.DOTALL)):
        if not re.fullmatch(r"\d{1,10}", item) or int(item) >= 1 << 32:
            raise ValueError(f'token_ids[{len(ids)}] is "{item[:40]}", not a token id')
        ids.append(int(item))
    if not ids:
        raise ValueError("token_ids is empty")
    return ids


def parse_chat(text: str) -> inference_pb2.Chat:
    """Parses a list of messages, in the form of `hearthctl generate --chat`."""
    messages, chat = _json(text), inference_pb2.Chat()
    if not is_list(messages):
        raise ValueError('the chat must be a list, like [{"role": "user", "content": "Hello"}]')
    for number, message in enumerate(messages):
        try:
            _read_message(message, chat.messages.add())
        except ValueError as error:
            raise ValueError(f"chat messages[{number}] {error}") from None
    return chat


def _read_message(message: Any, made: inference_pb2.ChatMessage) -> None:
    fields = _object(message, "role and content",
                     ("role", "content", "cache_breakpoint", "token_ids"))
    role, content, token_ids = fields.get("role"), fields.get("content"), fields.get("token_ids")
    if not isinstance(role, str):
        raise ValueError("has no role (a string)")
    made.role = role
    if isinstance(content, str):
        made.parts.add(text=content)
    elif is_list(content):
        for part in content:
            one = _object(part, "text", ("type", "text", "cache_breakpoint"))
            if not isinstance(one.get("text"), str) or one.get("type", "text") != "text":
                raise ValueError("has a part without text (a string)")
            made.parts.add(text=one["text"], cache_breakpoint=_flag(one))
    else:
        raise ValueError("has no content (a string or a list of parts)")
    if token_ids is not None:
        made.token_ids.extend(_token_ids(token_ids))
    if _flag(fields):
        if not made.parts:
            raise ValueError("has a cache_breakpoint and nothing before it")
        made.parts[-1].cache_breakpoint = True


def _object(value: Any, what: str, known: Sequence[str]) -> dict[str, Any]:
    if not is_object(value):
        raise ValueError(f"is not an object with {what}")
    for name in value:
        if name not in known:
            raise ValueError(f"has the unknown field {json.dumps(name)[:200]}; known are "
                             f"{', '.join(known)}")
    return value


def _flag(fields: dict[str, Any]) -> bool:
    flag = fields.get("cache_breakpoint", False)
    if not isinstance(flag, bool):
        raise ValueError("has a cache_breakpoint that is not true or false")
    return flag


def _token_ids(value: Any) -> list[int]:
    if not is_list(value) or any(type(one) is not int or not 0 <= one < 1 << 32 for one in value):
        raise ValueError("has token_ids that are not all token ids")
    return value


def _json(text: str) -> Any:
    """Parses JSON. Raises ValueError also if it is nested too deep, or has text that protobuf
    cannot encode."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("has a lone surrogate (half of a character)") from None
    except RecursionError:
        raise ValueError("is nested too deep") from None
    return value


def parse_questions(text: str, template: str, of_token_ids: bool,
                    each: inference_pb2.GenerateRequest) -> list[Question]:
    """Parses a file of questions. `each`: the options of all answers. `of_token_ids`: the context
    is token ids."""
    settings = _settings(each)
    questions: list[Question] = []
    line_of: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            question = _question(line, number, template, settings)
            if isinstance(question.ending, str) == of_token_ids:
                raise ValueError("has a text, but the context is token ids" if of_token_ids
                                 else "has token_ids, but the context is text")
            if question.id in line_of:
                raise ValueError(f'repeats the id "{question.id}" of line {line_of[question.id]}')
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        line_of[question.id] = number
        questions.append(question)
    if not questions:
        raise ValueError("has no question")
    return questions


def _question(line: str, number: int, template: str, settings: bytes) -> Question:
    question_id, kind = str(number), ""
    endings: list[Union[str, list[int]]] = []
    for name, field in _json_line(line).items():
        if name == "id" and (isinstance(field, str) or _is_whole(field)):
            question_id = str(field)
        elif name == "kind" and isinstance(field, str):
            kind = field
        elif name in _TEXT_FIELDS and isinstance(field, str):
            endings.append(template.replace(QUESTION_PLACE, field) if name == "question" else field)
        elif name == "token_ids" and isinstance(field, list):
            endings.append(_token_ids(field))
        else:
            raise ValueError(f"has a wrong field or type: {json.dumps(name)[:200]}; {_KNOWN}")
    if len(endings) > 1:
        raise ValueError("must have only one of question, ending, prompt and token_ids")
    if endings in ([], [""], [[]]):
        raise ValueError("must have one of question, ending, prompt and token_ids")
    ending = endings[0]
    text, ids = (ending, "") if isinstance(ending, str) else ("", ",".join(map(str, ending)))
    digest = hashlib.sha256(settings + f"\n{text}\n{ids}".encode())
    return Question(question_id, ending, kind, digest.hexdigest())


def _json_line(line: str) -> dict[str, Any]:
    why = ""
    try:
        value = _json(line)
        if is_object(value):
            return value
    except ValueError as error:
        why = f"; {error}"
    raise ValueError('is not a JSON object, like {"id": "q1", "question": "Which river?"}' + why)


def _is_whole(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 64


def _settings(each: inference_pb2.GenerateRequest) -> bytes:
    """Returns the encoded options that affect an answer. Options that affect only where and how
    long a prompt is stored are left out."""
    made = inference_pb2.GenerateRequest()
    made.CopyFrom(each)
    for name in ("prompt", "cache", "durability", "keep_s", "priority"):
        made.ClearField(name)
    made.sampling.SetInParent()  # digests of hearthctl ask include this field, even if empty
    return made.SerializeToString(deterministic=True)
