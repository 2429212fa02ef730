"""Shared by the caches for transformers and vLLM: deadlines of loads, the pause after a failed
call, and the digest of a model's config."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Generator, Mapping
from typing import Any

from hearth_cache.errors import HearthError

LOAD_DEADLINE_S = 2.0
# Seconds added to a load's deadline for each byte: a load slower than 50 MB/s would be slower than
# computing on most machines.
LOAD_S_PER_BYTE = 1 / 50e6
QUIET_S = (1.0, 8.0)  # the first pause after a failure, and the longest pause
# Fields of a model's config that do not change keys and values. They name the model's origin, or
# affect only how a token is sampled.
_IGNORED_CONFIG_FIELDS = {
    "_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype",
    "bos_token_id", "eos_token_id", "pad_token_id"}
_LOG = logging.getLogger("hearth_cache")


def load_deadline_s(size: int) -> float:
    return LOAD_DEADLINE_S + size * LOAD_S_PER_BYTE


def config_sha256(config: Mapping[str, Any]) -> str:
    told = {name: value for name, value in config.items() if name not in _IGNORED_CONFIG_FIELDS}
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


class StoreBackoff:
    """Pauses calls to a store after a failure. True during a pause. While failures continue, each
    pause is twice as long as the one before. `failures`: number of failed calls. Thread safety:
    calls may run in several threads; if two fail at the same time, the pause may be lengthened once
    or twice."""

    def __init__(self) -> None:
        self.failures = 0
        self._until, self._next_s = 0.0, QUIET_S[0]

    def __bool__(self) -> bool:
        return time.monotonic() < self._until

    @contextlib.contextmanager
    def call(self, *also: type[Exception]) -> Generator[None, None, None]:
        """Context manager for code that calls the store. It logs and suppresses a HearthError and
        begins a pause. It also logs and suppresses exceptions of the types `also`, without a
        pause."""
        try:
            yield
            self.end()
        except HearthError as error:
            self.failures += 1
            if not self:  # a call that began before the pause does not lengthen it
                self._until = time.monotonic() + self._next_s
                self._next_s = min(2 * self._next_s, QUIET_S[1])
            _LOG.warning("the store failed; the prompt is computed: %s", error)
        except also:
            _LOG.exception("a transfer failed; the prompt is computed")

    def end(self) -> None:
        """Call when the store has answered: ends the pause."""
        self._until, self._next_s = 0.0, QUIET_S[0]
