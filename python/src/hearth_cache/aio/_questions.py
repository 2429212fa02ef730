"""The prompts of many questions about one context, and the boundary that all of them share.

The last tokens of a text depend on the text after them, so each question is tokenized together with
the end of the context. For a long text that end is its last words, if they have the same tokens
alone as at the end of the whole text: then no token crosses their beginning.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from hearth_cache.answers import Question
from hearth_cache.v1 import inference_pb2

LONG_TEXT_CHARACTERS = 4096
END_CHARACTERS = 512

Tokenize = Callable[[inference_pb2.PromptInput], Awaitable[inference_pb2.TokenizeResponse]]


@dataclass
class _Asked:
    common: int = 0  # number of tokens that the prompt has in common with the context
    rest: list[int] = field(default_factory=list[int])
    breakpoints: list[int] = field(default_factory=list[int])


class AsyncQuestionPrompts:
    def __init__(self, context: inference_pb2.PromptInput, template: str,
                 tokenize: Tokenize) -> None:
        if "{question}" not in template:
            raise ValueError("template: must contain {question}")
        self.boundary = 0
        self._input, self._template, self._tokenize = context, template, tokenize
        self._ids: list[int] = []
        self._end, self._end_ids = "", [0] * 0
        self._asked: dict[int, _Asked] = {}

    async def read_context(self) -> None:
        """Call before read_question()."""
        if self._input.HasField("token_ids"):
            self._ids = list(self._input.token_ids.ids)
            return
        alone = copy.deepcopy(self._input)
        if alone.HasField("chat"):
            alone.chat.omit_generation_prompt = True
        self._ids = list((await self._tokenize(alone)).token_ids)
        end = _last_words(self._input.text)
        if end:
            ids = list((await self._tokenize(inference_pb2.PromptInput(text=end))).token_ids)
            # Compares the lists without BOS, which begins both.
            if ids[:1] == self._ids[:1] and ids[1:] == self._ids[len(self._ids) - len(ids) + 1:]:
                self._end, self._end_ids = end, ids

    async def read_question(self, number: int, question: Question) -> None:
        if not isinstance(question, str):
            self._asked[number] = _Asked(len(self._ids), list(question))
            return
        if not self._input.HasField("chat"):
            question = self._template.replace("{question}", question)
        if self._end:
            end = inference_pb2.PromptInput(text=self._end + question)
            ids = list((await self._tokenize(end)).token_ids)
            same = _common(self._end_ids, ids)
            if same >= 2:  # otherwise the question may change tokens of the context before `end`
                self._asked[number] = _Asked(len(self._ids) - len(self._end_ids) + same, ids[same:])
                return
        whole = await self._tokenize(self._with(question))
        ids = list(whole.token_ids)
        same = _common(self._ids, ids)
        self._asked[number] = _Asked(same, ids[same:], list(whole.breakpoints))

    def _with(self, question: str) -> inference_pb2.PromptInput:
        made = copy.deepcopy(self._input)
        if not made.HasField("chat"):
            made.text += question
        elif made.chat.messages and made.chat.messages[-1].role == "user":
            made.chat.messages[-1].parts.add(text=question)
        else:
            made.chat.messages.add(role="user").parts.add(text=question)
        return made

    def shared(self) -> inference_pb2.PromptInput:
        """Returns the prompt prefix that all questions share; empty if they share no token. Call
        after read_question() for all questions."""
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
    """Returns the end of a long text, beginning at a space after a letter; "" if the text is short
    or has no such space."""
    if len(text) <= LONG_TEXT_CHARACTERS:
        return ""
    found = re.match(r".*[A-Za-z](?= )", text[:len(text) - END_CHARACTERS + 1], re.DOTALL)
    return text[found.end():] if found else ""


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other)))
