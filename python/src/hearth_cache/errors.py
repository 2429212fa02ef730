"""The errors of Hearth's servers: one exception class for each gRPC status code."""

from __future__ import annotations

from typing import Any, Optional, Union

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

DEFAULT_RETRY_AFTER_S = 1.0
_CLASSES: dict[grpc.StatusCode, type[HearthError]] = {}


class HearthError(Exception):
    """A call that failed. `request_id`: the call's id in the logs of worker and store."""

    code = grpc.StatusCode.UNKNOWN

    def __init__(self, message: str, request_id: str = "", retry_after_s: Optional[float] = None,
                 field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.request_id = request_id
        self.retry_after_s = retry_after_s
        self.field = field

    def __init_subclass__(cls, code: Optional[grpc.StatusCode] = None) -> None:
        if code is not None:
            cls.code = code
            _CLASSES[code] = cls


class InvalidRequest(HearthError, code=grpc.StatusCode.INVALID_ARGUMENT):
    """The request is invalid; `field` is the path of the invalid field, or empty."""


class Unauthenticated(HearthError, code=grpc.StatusCode.UNAUTHENTICATED):
    """A token or a client certificate is missing or wrong."""


class PermissionDenied(HearthError, code=grpc.StatusCode.PERMISSION_DENIED):
    """The caller may not make this call, or not for this tenant."""


class NotFound(HearthError, code=grpc.StatusCode.NOT_FOUND):
    """There is no such restore point or request."""


class PreconditionFailed(HearthError, code=grpc.StatusCode.FAILED_PRECONDITION):
    """The server is not configured for this call; the message says what is missing."""


class Busy(HearthError, code=grpc.StatusCode.RESOURCE_EXHAUSTED):
    """A limit of the server is reached; retry after `retry_after_s`."""


class Unavailable(HearthError, code=grpc.StatusCode.UNAVAILABLE):
    """The server is unreachable or shutting down."""


class DeadlineExceeded(HearthError, code=grpc.StatusCode.DEADLINE_EXCEEDED):
    """The call exceeded its deadline_s, or a time limit of the server."""


class Cancelled(HearthError, code=grpc.StatusCode.CANCELLED):
    """The call was cancelled."""


class DataLoss(HearthError, code=grpc.StatusCode.DATA_LOSS):
    """Bytes do not match their digest, or a message is missing or invalid."""


class Conflict(HearthError, code=grpc.StatusCode.ABORTED):
    """The store has other bytes under this key and keeps them."""


def from_call(call: Any, address: str, request_id: str) -> HearthError:
    """Converts `call`, the exception that gRPC raised."""
    said: dict[str, Union[str, bytes]] = dict(call.trailing_metadata() or ())
    code, details = call.code(), call.details() or call.code().name
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "message larger than max" in details:
        # GRPC refused the message's size: a retry cannot succeed.
        code = grpc.StatusCode.INVALID_ARGUMENT
    kind = _CLASSES.get(code, HearthError)
    retry_after_s = _seconds(said.get("retry-after-ms")) if kind is Busy else None
    made = kind(f"{address}: {details}", request_id, retry_after_s,
                _field(said.get("grpc-status-details-bin")))
    made.code = code
    return made


def _seconds(text: Union[str, bytes, None]) -> float:
    try:
        seconds = int(text or "") / 1000
    except (OverflowError, ValueError):
        return DEFAULT_RETRY_AFTER_S
    return seconds if seconds >= 0 else DEFAULT_RETRY_AFTER_S


def _field(details: Union[str, bytes, None]) -> str:
    request = error_details_pb2.BadRequest()
    try:
        if isinstance(details, bytes):
            for detail in status_pb2.Status.FromString(details).details:
                if detail.Unpack(request) and request.field_violations:
                    return str(request.field_violations[0].field)
    except DecodeError:  # unreadable details: report the call's error without them
        pass
    return ""
