"""Answers of a worker, complete or while they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional, Union

from hearth_cache.errors import DataLoss, InvalidRequest
from hearth_cache.v1 import inference_pb2, store_stats_pb2

Question = Union[str, Sequence[int]]
# More samples than any worker allows. Limits memory if a message has a wrong sample number.
SAMPLES_MAX = 1024

FINISH_REASONS = {
    inference_pb2.FINISH_REASON_LENGTH: "length",
    inference_pb2.FINISH_REASON_EOS: "eos",
    inference_pb2.FINISH_REASON_STOP: "stop",
}


@dataclass
class Sample:
    """One answer of several to a prompt."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list[int])
    # Log probabilities of token_ids, if requested.
    logprobs: list[float] = field(default_factory=list[float])
    finish_reason: str = ""  # one of length, eos and stop


@dataclass
class Answer:
    """An answer, which may be incomplete. `started` and `finished` are the worker's messages."""

    request_id: str  # identifies the request in logs, and for save_state()
    samples: list[Sample] = field(default_factory=lambda: [Sample()])
    prompt_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens that were restored instead of computed
    # Slowest tier of the restored tokens: worker, gpu, host, disk or shared.
    source_tier: str = "none"
    started: inference_pb2.Started = field(default_factory=inference_pb2.Started)
    finished: inference_pb2.Finished = field(default_factory=inference_pb2.Finished)
    published: Optional[inference_pb2.Published] = None
    prompt: list[inference_pb2.PromptTokens.Token] = field(
        default_factory=list[inference_pb2.PromptTokens.Token])

    @property
    def text(self) -> str:
        return self.samples[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.samples[0].token_ids

    @property
    def finish_reason(self) -> str:
        return self.samples[0].finish_reason

    def take(self, message: inference_pb2.GenerateResponse
             ) -> Optional[inference_pb2.GeneratedToken]:
        """Adds a message of the stream. Returns the token in the message, or None."""
        kind = message.WhichOneof("message")
        if kind == "started":
            self.started = message.started
            self.prompt_tokens = message.started.prompt_tokens
            self.cached_tokens = message.started.cached_tokens
            self.source_tier = tier_name(message.started.source_tier)
        elif kind == "prompt":
            self.prompt.extend(message.prompt.tokens)
        elif kind == "finished":
            self.finished = message.finished
            for number, end in enumerate(message.finished.samples):
                self._sample(number).finish_reason = FINISH_REASONS.get(end.reason, "")
        elif kind == "published":
            self.published = message.published
        elif kind == "token":
            sample = self._sample(message.token.sample)
            sample.text += message.token.text
            sample.token_ids.extend(message.token.ids)
            sample.logprobs.extend(one.logprob for one in message.token.logprobs)
            return message.token
        return None

    def _sample(self, number: int) -> Sample:
        if number >= SAMPLES_MAX:
            raise DataLoss(f"the answer's sample number must be below {SAMPLES_MAX}; got {number}")
        while len(self.samples) <= number:
            self.samples.append(Sample())
        return self.samples[number]


@dataclass(frozen=True)
class Asked:
    """The outcome of one question of ask(): an answer, or an error that ends only this question."""

    number: int
    question: Question
    answer: Optional[Answer] = None
    error: Optional[InvalidRequest] = None


@dataclass(frozen=True)
class Cache:
    """A cache of Worker.caches."""

    id: str
    tokens: int
    bytes: int
    tier: str
    pinned: bool
    hits: int
    expires_in_s: Optional[float]  # None: never


def tier_name(tier: store_stats_pb2.Tier) -> str:
    """Returns the tier's name; for a tier that this version does not know, its number."""
    if tier not in store_stats_pb2.Tier.values():
        return str(tier)
    return store_stats_pb2.Tier.Name(tier).removeprefix("TIER_").lower()
