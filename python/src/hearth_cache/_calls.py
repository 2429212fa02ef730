"""How a client reaches a server, and how long it retries a call."""

from __future__ import annotations

import os
import pathlib
import random
import re
import time
from dataclasses import dataclass
from typing import Optional, Union

import grpc

from hearth_cache.errors import Busy, HearthError, Unavailable

FIRST_BACKOFF_S = 0.05
LONGEST_BACKOFF_S = 1.0
LONGEST_HINT_S = 60.0
REQUEST_ID_KEY = "hearth-request-id"
CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.enable_retries", 0),
]

PathText = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Access:
    """Credentials of a client. If `tls_ca` is set, the connection uses TLS. `tls_ca`, `tls_cert`,
    `tls_key` and `token_file` are paths. The token file is read again for each call, because
    Kubernetes renews tokens. `plaintext_tokens`: allows sending the token without TLS."""

    tls_ca: Optional[PathText] = None
    tls_cert: Optional[PathText] = None
    tls_key: Optional[PathText] = None
    token: Optional[str] = None
    token_file: Optional[PathText] = None
    plaintext_tokens: bool = False

    def check(self, address: str) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key must be given together")
        if self.tls_cert is not None and self.tls_ca is None:
            raise ValueError("tls_cert needs tls_ca, the CA of the server's certificate")
        if self.token is not None and self.token_file is not None:
            raise ValueError("token and token_file exclude each other; give one")
        has_token = self.token is not None or self.token_file is not None
        if has_token and self.tls_ca is None and not self.plaintext_tokens \
                and not _stays_on_host(address):
            raise ValueError(
                f"the token would be sent to {address} in clear text; give tls_ca, or "
                "plaintext_tokens if the network itself is encrypted")

    def credentials(self) -> Optional[grpc.ChannelCredentials]:
        if self.tls_ca is None:
            return None
        return grpc.ssl_channel_credentials(
            pathlib.Path(self.tls_ca).read_bytes(),
            None if self.tls_key is None else pathlib.Path(self.tls_key).read_bytes(),
            None if self.tls_cert is None else pathlib.Path(self.tls_cert).read_bytes())

    def metadata(self, request_id: str) -> tuple[tuple[str, str], ...]:
        sent = ((REQUEST_ID_KEY, request_id),)
        token = self.token
        if self.token_file is not None:
            token = pathlib.Path(self.token_file).read_text(encoding="ascii").strip()
        # The servers have the same rule. It is checked here because gRPC's error for such a token
        # would contain the token.
        if token is not None and not re.fullmatch(r"[\x21-\x7e]+", token):
            raise ValueError("the token must be visible ASCII characters without spaces")
        return sent if token is None else (*sent, ("authorization", f"Bearer {token}"))


def _stays_on_host(address: str) -> bool:
    return address.startswith(("unix:", "unix-abstract:", "localhost:", "[::1]:")) or \
        re.fullmatch(r"127\.[0-9.:]*", address) is not None


class Patience:
    """The retry policy of one call: at most `retries` retries, until the call's deadline.
    `waits_for_room`: retries after Busy are not counted."""

    def __init__(self, deadline_s: float, retries: int, waits_for_room: bool = False) -> None:
        self._end = time.monotonic() + deadline_s
        self._retries, self._waits_for_room = retries, waits_for_room
        self._backoff_s = FIRST_BACKOFF_S

    def left_s(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def delay_s(self, failure: HearthError) -> float:
        """Returns the seconds to wait before the next retry. Raises `failure` if no retry is
        allowed."""
        if isinstance(failure, Busy):
            delay_s = min(failure.retry_after_s or 0.0, LONGEST_HINT_S)
        elif isinstance(failure, Unavailable):
            delay_s, self._backoff_s = self._backoff_s, min(2 * self._backoff_s, LONGEST_BACKOFF_S)
        else:
            raise failure
        # Random, so that callers that were refused at the same time retry at different times.
        delay_s *= random.uniform(1.0, 1.25)
        counts = not (self._waits_for_room and isinstance(failure, Busy))
        if (counts and self._retries <= 0) or delay_s >= self.left_s():
            raise failure
        self._retries -= counts
        return delay_s
