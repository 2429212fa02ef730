"""The answer file, its lines, and the report of a run.

Each complete answer is appended to the file at once, with digests of its context and question and
the name of its model, so that the next run continues where this run stops. A last line without a
line feed was being written when a program died. If it begins like an answer, the next answer
replaces it.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import stat
from collections import Counter
from collections.abc import Sequence
from typing import Any, Optional, Union

from hearth_cache.answers import FINISH_REASONS, Answer, tier_name
from hearth_cache.ask._inputs import Question, is_object
from hearth_cache.errors import HearthError, PreconditionFailed
from hearth_cache.v1 import inference_pb2

_BEGIN = b'{"id":"'  # of each line
_OTHER_FILE = "; pass another --output"


def json_line(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class AnswerFile:
    """The answer file, locked against other programs. The constructor raises ValueError if a
    line is not an answer of hearth_cache.ask, or if the file is one of `inputs`. It raises
    PreconditionFailed if the answers are about another context, or if another program has the
    file locked. After an error, the file is unchanged."""

    def __init__(self, path: str, context_sha256: str, inputs: Sequence[str] = ()) -> None:
        for one in inputs:
            if os.path.exists(path) and os.path.exists(one) and os.path.samefile(path, one):
                raise ValueError(f"{path}: --output is also an input file{_OTHER_FILE}")
        self._path, self._context_sha256 = path, context_sha256
        self._sha256_of: dict[str, str] = {}  # question id: digest of the answered question
        self._models: dict[str, int] = {}  # model name: number of its first line
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC |
                             os.O_NONBLOCK, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise ValueError(f"{path} must be a regular file")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PreconditionFailed(
                    f"{path} is being written by another program{_OTHER_FILE}") from None
            self._read()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._file)

    def _read(self) -> None:
        with open(self._path, "rb") as file:
            lines = file.read().split(b"\n")
        torn = lines.pop()
        for number, line in enumerate(lines, 1):
            self._read_line(line, number)
        if torn and not torn.startswith(_BEGIN) and not _BEGIN.startswith(torn):
            raise self._no_answer(len(lines) + 1)
        self._whole_bytes = sum(map(len, lines)) + len(lines)

    def _no_answer(self, number: int) -> ValueError:
        return ValueError(
            f"{self._path} line {number} is not an answer of hearth_cache.ask{_OTHER_FILE}")

    def _read_line(self, line: bytes, number: int) -> None:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise self._no_answer(number) from None
        fields = value if is_object(value) else {}
        question_id, question, context, model = (
            one if isinstance(one, str) else "" for one in map(
                fields.get, ("id", "question_sha256", "context_sha256", "model")))
        if not question_id or not question or not context:
            raise self._no_answer(number)
        if context != self._context_sha256:
            raise PreconditionFailed(
                f"{self._path} line {number} answers a question about another context (sha256 "
                f"{context}, not {self._context_sha256}){_OTHER_FILE}")
        self._sha256_of[question_id] = question
        self._models.setdefault(model, number)

    def has(self, question: Question) -> bool:
        """Returns whether the file answers the question. Raises PreconditionFailed if it has an
        answer to another question with this id."""
        found = self._sha256_of.get(question.id)
        if found is not None and found != question.sha256:
            raise PreconditionFailed(
                f'{self._path} has an answer to another question "{question.id}": its text or '
                f"an answer flag differs{_OTHER_FILE}, or remove that line")
        return found is not None

    def check_model(self, model: str) -> None:
        """Raises PreconditionFailed if the file has answers of another model."""
        for other, line in self._models.items():
            if other != model:
                raise PreconditionFailed(f"{self._path} line {line} is of another model "
                                         f"({other}, not {model}){_OTHER_FILE}")

    def append(self, question: Question, line: dict[str, Any], model: str) -> None:
        whole = json_line({**line, "context_sha256": self._context_sha256,
                           "question_sha256": question.sha256, "model": model}).encode() + b"\n"
        os.ftruncate(self._file, self._whole_bytes)  # remove an incomplete last line
        self._whole_bytes += len(whole)
        while whole:
            whole = whole[os.write(self._file, whole):]


def model_name(model: inference_pb2.GetModelResponse, adapter: str) -> str:
    """Returns a name of everything that determines a model's answers: weights, their format, and
    the adapter."""
    fields = {field.name: field.text for field in model.fingerprint.fields}
    digests = [one.fingerprint.digest.hex() for one in model.adapters if one.name == adapter]
    parts = [fields.get("weights_sha256", ""), *filter(None, [fields.get("weights")]),
             *(f"through {digest}" for digest in digests)]
    return " ".join(parts)


def answer_line(question: Question, answer: Union[Answer, HearthError]) -> dict[str, Any]:
    """Returns {"id", "kind", "answer", ...} or, if the question failed, {..., "error",
    "error_code"}."""
    line: dict[str, Any] = {"id": question.id}
    if question.kind:
        line["kind"] = question.kind
    if isinstance(answer, HearthError):
        return {**line, "error": answer.message, "error_code": answer.code.value[0]}
    return {**line, "answer": answer.text, "finish_reason": _reason(answer),
            "prompt_tokens": answer.prompt_tokens, "cached_tokens": answer.cached_tokens,
            "computed_tokens": answer.finished.computed_tokens, "source_tier": answer.source_tier,
            "ttft_ms": answer.finished.ttft_ms, "total_ms": answer.finished.total_ms,
            "token_ids": answer.token_ids}


def _reason(answer: Answer) -> str:
    return FINISH_REASONS.get(answer.finished.reason, "unknown")


def ms_text(ms: float) -> str:
    value, unit = (ms, "ms") if ms < 10000 else (ms / 1000, "s")
    return f"{value:.{2 if value < 10 else 1}f} {unit}"


class AskReport:
    """The totals of a run. The hit rate is cached tokens divided by tokens of all prompts."""

    def __init__(self) -> None:
        self.context: Optional[inference_pb2.PrefillResponse] = None
        self.answered = self.failed = self.answered_before = self.unanswered = 0
        self._cached = self._computed = self._new = 0
        self._ttft_ms: list[float] = []
        self._endings: Counter[str] = Counter()

    def add(self, answer: Union[Answer, HearthError]) -> None:
        if isinstance(answer, HearthError):
            self.failed += 1
            return
        self.answered += 1
        self._cached += answer.cached_tokens
        self._computed += answer.finished.computed_tokens
        self._new += answer.finished.generated_tokens
        self._ttft_ms.append(answer.finished.ttft_ms)
        self._endings[_reason(answer)] += 1

    @property
    def is_complete(self) -> bool:
        return self.unanswered == 0 and self.failed == 0

    def _hit_rate(self) -> float:
        return self._cached / max(1, self._cached + self._computed)

    def _ttft(self, share: float) -> float:
        """Returns the time to first token that this fraction of the questions did not exceed."""
        if not self._ttft_ms:
            return 0.0
        return sorted(self._ttft_ms)[math.ceil(share * len(self._ttft_ms)) - 1]

    def text(self, total_ms: float) -> str:
        lines: list[str] = []
        if self.context is not None:
            lines.append(f"context: {self.context.prompt_tokens} tokens shared, "
                         f"{self.context.cached_tokens} cached, {self.context.computed_tokens} "
                         f"computed, ready after {ms_text(self.context.total_ms)}")
        if self.answered + self.failed > 0:
            lines.append(f"questions: {self.answered} answered, {self.failed} failed; tokens: "
                         f"{self._cached} cached, {self._computed} computed "
                         f"({100 * self._hit_rate():.1f}% cached); first token after "
                         f"{ms_text(self._ttft(0.5))} (median), {ms_text(self._ttft(0.99))} (p99)")
            endings = [f", {count} ended by {name}" for name, count in sorted(
                self._endings.items())]
            lines.append(f"{self._new} new tokens in {ms_text(total_ms)}{''.join(endings)}")
        if self.answered_before > 0:
            lines.append(f"{self.answered_before} were already answered")
        if self.unanswered > 0:
            lines.append(f"{self.unanswered} were not answered")
        return "".join(line + "\n" for line in lines)

    def json(self, total_ms: float) -> dict[str, Any]:
        made: dict[str, Any] = {
            "questions": self.answered + self.failed, "answered": self.answered,
            "failed": self.failed, "cached_tokens": self._cached,
            "computed_tokens": self._computed, "new_tokens": self._new,
            "hit_rate": self._hit_rate(), "ttft_median_ms": self._ttft(0.5),
            "ttft_p99_ms": self._ttft(0.99), "answered_before": self.answered_before,
            "unanswered": self.unanswered, "total_ms": total_ms}
        if self.context is not None:
            made["context"] = {"tokens": self.context.prompt_tokens,
                               "cached_tokens": self.context.cached_tokens,
                               "computed_tokens": self.context.computed_tokens,
                               "source_tier": tier_name(self.context.source_tier),
                               "total_ms": self.context.total_ms}
        return {**made, "finish_reasons": dict(sorted(self._endings.items()))}
