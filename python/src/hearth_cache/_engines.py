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
LOAD_S_PER_BYTE = 1 / 50e6  # added to the deadline; most machines compute faster than 50 MB/s
QUIET_S = (1.0, 8.0)  # the first and the longest pause
# Fields of a model's config that do not change keys and values: they name its origin, or decide
# only which token is drawn.
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
    """Pauses calls of a store after a failure; true during a pause. Each pause in a row is twice as
    long as the one before. `failures` counts failed calls. Thread safety: two threads that fail at
    the same time may lengthen the pause once or twice."""

    def __init__(self) -> None:
        self.failures = 0
        self._until, self._next_s = 0.0, QUIET_S[0]

    def __bool__(self) -> bool:
        return time.monotonic() < self._until

    @contextlib.contextmanager
    def call(self, *also: type[Exception]) -> Generator[None, None, None]:
        """Wraps a block that calls the store. A HearthError ends the block, is logged, and begins
        a pause. Exceptions of the types `also` end the block and are logged."""
        try:
            yield
            self.end()
        except HearthError as error:
            self.failures += 1
            if not self:  # else this call began before the pause did
                self._until = time.monotonic() + self._next_s
                self._next_s = min(2 * self._next_s, QUIET_S[1])
            _LOG.warning("the store failed; the prompt is computed: %s", error)
        except also:
            _LOG.exception("a transfer failed; the prompt is computed")

    def end(self) -> None:
        """Ends the pause: the store answered."""
        self._until, self._next_s = 0.0, QUIET_S[0]
