"""The prompts of many questions about one context, and the boundary that all share.

A text's last tokens depend on what follows it, so that each question is turned into tokens behind
the text's end. Of a long text that end is its last words, where their tokens are the same behind
the whole text as alone: then no token reaches across their beginning. The rules are those of
`hearthctl ask` (services/hearthctl/ask/asked_prompts.h).

Functions that need the worker's tokens are generators: they yield a prompt, and are sent what
Tokenize answered, so that the blocking client and the one for asyncio share them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Union

from hearth_cache.v1 import inference_pb2

LONG_TEXT_CHARACTERS = 4096
END_CHARACTERS = 512

Question = Union[str, Sequence[int]]
Tokenizing = Generator[inference_pb2.PromptInput, inference_pb2.TokenizeResponse, None]


@dataclass
class _Asked:
    common: int = 0  # tokens of the context that it begins with
    rest: list[int] = field(default_factory=list[int])
    breakpoints: list[int] = field(default_factory=list[int])


class AskedPrompts:
    def __init__(self, context: inference_pb2.PromptInput, questions: Sequence[Question],
                 template: str) -> None:
        self.boundary = 0
        self._input = context
        self._ids: list[int] = []
        self._end, self._end_ids = "", [0] * 0
        self._asked: dict[int, _Asked] = {}
        self._questions = [self._checked(question, template) for question in questions]

    def _checked(self, question: Question, template: str) -> Question:
        is_text = isinstance(question, str)
        if is_text == self._input.HasField("token_ids"):
            raise ValueError("questions are token ids where the context is, else texts")
        if not isinstance(question, str) or self._input.HasField("chat"):
            return question
        return template.replace("{question}", question)

    def read_context(self) -> Tokenizing:
        """Before the questions are read."""
        if self._input.HasField("token_ids"):
            self._ids = list(self._input.token_ids.ids)
            return
        alone = inference_pb2.PromptInput()
        alone.CopyFrom(self._input)
        if alone.HasField("chat"):
            alone.chat.omit_generation_prompt = True
        self._ids = list((yield alone).token_ids)
        end = _last_words(self._input.text)
        if end:
            ids = list((yield inference_pb2.PromptInput(text=end)).token_ids)
            # Each begins with the token that begins every text.
            if ids[:1] == self._ids[:1] and ids[1:] == self._ids[len(self._ids) - len(ids) + 1:]:
                self._end, self._end_ids = end, ids

    def read_question(self, number: int) -> Tokenizing:
        question = self._questions[number]
        if not isinstance(question, str):
            self._asked[number] = _Asked(len(self._ids), list(question))
            return
        if self._end:
            ids = list((yield inference_pb2.PromptInput(text=self._end + question)).token_ids)
            same = _common(self._end_ids, ids)
            if same >= 2:  # else the question may reach further back
                self._asked[number] = _Asked(len(self._ids) - len(self._end_ids) + same, ids[same:])
                return
        whole = yield self._with(question)
        ids = list(whole.token_ids)
        same = _common(self._ids, ids)
        self._asked[number] = _Asked(same, ids[same:], list(whole.breakpoints))

    def _with(self, question: str) -> inference_pb2.PromptInput:
        made = inference_pb2.PromptInput()
        made.CopyFrom(self._input)
        if not made.HasField("chat"):
            made.text += question
        elif made.chat.messages and made.chat.messages[-1].role == "user":
            made.chat.messages[-1].parts.add(text=question)
        else:
            made.chat.messages.add(role="user").parts.add(text=question)
        return made

    def shared(self) -> inference_pb2.PromptInput:
        """What is kept for all, once the questions are read; empty: they share nothing."""
        self.boundary = min((asked.common for asked in self._asked.values()), default=0)
        made = inference_pb2.PromptInput()
        if self.boundary > 0:
            made.token_ids.ids.extend(self._ids[:self.boundary])
            first = next(iter(self._asked.values()))
            made.breakpoints.extend(at for at in first.breakpoints if at < self.boundary)
            made.breakpoints.append(self.boundary)
        return made

    def prompt_of(self, number: int) -> inference_pb2.PromptInput:
        """REQUIRES: shared() was called, and the question was read without an error."""
        asked = self._asked[number]
        made = inference_pb2.PromptInput()
        made.token_ids.ids.extend(self._ids[:asked.common])
        made.token_ids.ids.extend(asked.rest)
        made.breakpoints.extend(sorted({self.boundary, *asked.breakpoints} - {0}))
        return made


def _last_words(text: str) -> str:
    """The end of a long text, from a space behind a letter on; empty where there is none."""
    if len(text) <= LONG_TEXT_CHARACTERS:
        return ""
    at = len(text) - END_CHARACTERS
    while at > 0 and not (text[at] == " " and text[at - 1].isascii() and text[at - 1].isalpha()):
        at -= 1
    return text[at:] if at > 0 else ""


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    count = 0
    for a, b in zip(one, other):
        if a != b:
            break
        count += 1
    return count
