"""One run of ask(): what is asked of a worker, and what comes of each question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from hearth_cache._asked_prompts import AskedPrompts, Question
from hearth_cache.answers import Answer
from hearth_cache.errors import InvalidRequest
from hearth_cache.prompts import (
    GenerateOptions, Prompt, generate_request, prefill_request, prompt_input)
from hearth_cache.v1 import inference_pb2


@dataclass(frozen=True)
class Asked:
    """One question and what came of it: an answer, or the error of this question alone."""

    number: int
    question: Question
    answer: Optional[Answer] = None
    error: Optional[InvalidRequest] = None


class Asking:
    """One run of ask(): what both clients do alike."""

    def __init__(self, context: Prompt, questions: Sequence[Question], template: str,
                 options: GenerateOptions) -> None:
        if "{question}" not in template:
            raise ValueError("template: has no {question}")
        self.prompts = AskedPrompts(prompt_input(context, options), questions, template)
        self.questions = questions
        self.failed: dict[int, InvalidRequest] = {}
        self._options = options

    def context_request(self) -> Optional[inference_pb2.PrefillRequest]:
        """Of the part that is kept for all questions, once they are read."""
        shared, cache = self.prompts.shared(), self._options.get("cache", "default")
        if self.prompts.boundary == 0 or cache not in ("default", "write"):
            return None
        return prefill_request(shared, self._options.get("durability", "default"),
                               self._options.get("ttl_s"), self._options.get("adapter", ""))

    def request(self, number: int) -> inference_pb2.GenerateRequest:
        request = generate_request(self.prompts.prompt_of(number), self._options)
        # The context is kept; a question's end is of no use to anybody.
        if request.cache == inference_pb2.CACHE_MODE_DEFAULT:
            request.cache = inference_pb2.CACHE_MODE_READ
        elif request.cache == inference_pb2.CACHE_MODE_WRITE:
            request.cache = inference_pb2.CACHE_MODE_OFF
        return request

    def outcome(self, number: int, answer: Optional[Answer]) -> Asked:
        return Asked(number, self.questions[number], answer, self.failed.get(number))
