"""How long a store is waited for, and how long one that failed is left alone."""

from __future__ import annotations

import logging
import time

LOAD_DEADLINE_S = 2.0  # and so much for each byte: slower than computing on most machines
LOAD_S_PER_BYTE = 1 / 50e6
QUIET_S = (1.0, 8.0)
_LOG = logging.getLogger("hearth_cache")


def load_deadline_s(size: int) -> float:
    return LOAD_DEADLINE_S + size * LOAD_S_PER_BYTE


class Quiet:
    """A store that failed is left alone for a while, twice as long each time. `failures` counts
    them. Thread safety: calls that meet count as one or as two."""

    def __init__(self) -> None:
        self.failures = 0
        self._until, self._next_s = 0.0, QUIET_S[0]

    def __bool__(self) -> bool:
        return time.monotonic() < self._until

    def end(self) -> None:
        """The store answered."""
        self._until, self._next_s = 0.0, QUIET_S[0]

    def begin(self, error: Exception) -> None:
        self.failures += 1
        if not self:  # else calls failed that were under way together
            self._until = time.monotonic() + self._next_s
            self._next_s = min(2 * self._next_s, QUIET_S[1])
        _LOG.warning("the store failed, the prompt is computed: %s", error)
