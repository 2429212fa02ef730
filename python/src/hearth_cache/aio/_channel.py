"""A gRPC channel to a server, and its calls."""

from __future__ import annotations

import secrets
from asyncio import sleep
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Optional, TypeVar, Union

import grpc.aio
from google.protobuf.message import Message
from typing_extensions import Self

from hearth_cache._calls import CHANNEL_OPTIONS, Access, Patience
from hearth_cache.errors import HearthError, from_call

R = TypeVar("R", bound=Message)
T = TypeVar("T")


class AsyncClosing:
    """A context manager that calls close() at the end of its block."""

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *unused: object) -> None:
        await self.close()


class AsyncChannel:
    """Calls methods of one gRPC service, by name."""

    def __init__(self, service: str, address: str, access: Optional[Access], deadline_s: float,
                 retries: int) -> None:
        self._access = access or Access()
        self._access.check(address)
        self._service, self._address = service, address
        self._deadline_s, self._retries = deadline_s, retries
        credentials = self._access.credentials()
        self._channel = grpc.aio.insecure_channel(address, CHANNEL_OPTIONS) if not credentials \
            else grpc.aio.secure_channel(address, credentials, CHANNEL_OPTIONS)

    def connect(self) -> None:
        self._channel.get_state(try_to_connect=True)

    async def close(self) -> None:
        await self._channel.close()

    def patience(self, deadline_s: Optional[float] = None, *,
                 waits_for_room: bool = False) -> Patience:
        return Patience(self._deadline_s if deadline_s is None else deadline_s, self._retries,
                        waits_for_room)

    async def unary(self, method: str, request: Message, response: type[R],
                    patience: Optional[Patience] = None) -> R:
        return await last(self.stream(method, request, response, patience))

    async def stream(self, method: str, request: Message, response: type[R],
                     patience: Optional[Patience] = None,
                     request_id: str = "") -> AsyncGenerator[R, None]:
        """Retried until the first message arrives. Closing the iterator cancels the call."""
        patience, request_id = patience or self.patience(), request_id or new_request_id()
        while True:
            begun = False
            try:
                async with aclosing(self.once(method, request, response, patience,
                                              request_id)) as messages:
                    async for message in messages:
                        begun = True
                        yield message
                return
            except HearthError as error:
                if begun:
                    raise
                delay_s = patience.delay_s(error)
            await sleep(delay_s)

    async def once(self, method: str, requests: Union[Message, AsyncIterator[Message]],
                   response: type[R], patience: Patience,
                   request_id: str = "") -> AsyncGenerator[R, None]:
        """Not retried, because `requests` cannot be read again: the caller must begin again."""
        request_id = request_id or new_request_id()
        kind: Any = self._channel.unary_stream if isinstance(requests, Message) \
            else self._channel.stream_stream
        call = kind(f"/hearth.v1.{self._service}/{method}", _bytes_of, response.FromString)(
            requests, timeout=patience.left_s(), metadata=self._access.metadata(request_id))
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise from_call(error, self._address, request_id) from None
        finally:
            call.cancel()


def new_request_id() -> str:
    return secrets.token_hex(8)


def _bytes_of(message: Message) -> bytes:
    return message.SerializeToString()


async def last(messages: AsyncIterator[T]) -> T:
    got = [message async for message in messages]
    if not got:
        raise HearthError("the call ended without an answer")
    return got[-1]
