"""What caches of other engines have in common: how long a store is waited for, how long one that
failed is left alone, and the digest of a model's config."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Generator, Mapping
from typing import Any

from hearth_cache.errors import HearthError

LOAD_DEADLINE_S = 2.0  # and so much for each byte: slower than computing on most machines
LOAD_S_PER_BYTE = 1 / 50e6
QUIET_S = (1.0, 8.0)
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
    """A store that failed is left alone for a while, twice as long each time. `failures` counts
    them. Thread safety: calls that meet count as one or as two."""

    def __init__(self) -> None:
        self.failures = 0
        self._until, self._next_s = 0.0, QUIET_S[0]

    def __bool__(self) -> bool:
        return time.monotonic() < self._until

    @contextlib.contextmanager
    def call(self, *also: type[Exception]) -> Generator[None, None, None]:
        """A block that calls the store. Its failure ends the block and is logged; and so are
        errors of `also`, which are not the store's."""
        try:
            yield
            self.end()
        except HearthError as error:
            self.failures += 1
            if not self:  # else calls failed that were under way together
                self._until = time.monotonic() + self._next_s
                self._next_s = min(2 * self._next_s, QUIET_S[1])
            _LOG.warning("the store failed; the prompt is computed: %s", error)
        except also:
            _LOG.exception("a transfer failed; the prompt is computed")

    def end(self) -> None:
        """The store answered."""
        self._until, self._next_s = 0.0, QUIET_S[0]
