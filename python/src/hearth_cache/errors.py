"""The errors of Hearth's servers, a class each: `except Busy` instead of comparing codes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional, Union

import grpc
from google.rpc import error_details_pb2, status_pb2

DEFAULT_RETRY_AFTER_S = 1.0


class HearthError(Exception):
    """A call that failed. `request_id`: as the logs of worker and store have it."""

    def __init__(self, message: str, request_id: str = "", retry_after_s: Optional[float] = None,
                 field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.request_id = request_id
        self.retry_after_s = retry_after_s
        self.field = field


class InvalidRequest(HearthError):
    """A field of the request is wrong; `field` is its path, where it is about one."""


class Unauthenticated(HearthError):
    """The server asks who calls: a token or a client certificate is missing or wrong."""


class PermissionDenied(HearthError):
    """The caller may not do this, or not for this tenant."""


class NotFound(HearthError):
    """There is no such restore point or request."""


class PreconditionFailed(HearthError):
    """The server cannot do this as it was started: the message says what is missing."""


class Busy(HearthError):
    """A limit is reached for now; repeat after `retry_after_s`."""


class Unavailable(HearthError):
    """The server cannot be reached, or is ending."""


class DeadlineExceeded(HearthError):
    """The call took longer than its deadline_s, or its peer than it may."""


class Cancelled(HearthError):
    """The call was cancelled."""


class DataLoss(HearthError):
    """Bytes do not match their digest; nothing was used."""


class Conflict(HearthError):
    """The key exists with other bytes; the stored ones stay."""


_CLASSES: dict[grpc.StatusCode, type[HearthError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionFailed,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Busy,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.DATA_LOSS: DataLoss,
    grpc.StatusCode.ABORTED: Conflict,
}

Trailers = Iterable[tuple[str, Union[str, bytes]]]


def from_status(code: grpc.StatusCode, details: str, trailers: Trailers, address: str,
                request_id: str) -> HearthError:
    """`trailers`: the call's trailing metadata."""
    said = {key: value for key, value in trailers}
    kind = _CLASSES.get(code, HearthError)
    retry_after_s = _seconds(said.get("retry-after-ms")) if kind is Busy else None
    return kind(f"{address}: {details or code.name}", request_id, retry_after_s,
                _field(said.get("grpc-status-details-bin")))


def _seconds(text: Union[str, bytes, None]) -> float:
    try:
        return int(text or "") / 1000
    except ValueError:
        return DEFAULT_RETRY_AFTER_S


def _field(details: Union[str, bytes, None]) -> str:
    if not isinstance(details, bytes):
        return ""
    request = error_details_pb2.BadRequest()
    for detail in status_pb2.Status.FromString(details).details:
        if detail.Unpack(request) and request.field_violations:
            return str(request.field_violations[0].field)
    return ""
