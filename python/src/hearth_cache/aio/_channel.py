"""A channel to a server, for unary calls and streams."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Optional

import grpc.aio
from typing_extensions import Self

from hearth_cache._calls import (
    CHANNEL_OPTIONS, Access, Method, Patience, Peer, Q, R, begin_to_connect, bytes_of,
    new_request_id)


class AsyncClosing:
    """A block that ends with close()."""

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *unused: object) -> None:
        await self.close()


class AsyncChannel(Peer):
    """Calls of one server."""

    def __init__(self, address: str, access: Optional[Access], deadline_s: float,
                 retries: int) -> None:
        super().__init__(address, access, deadline_s, retries)
        credentials = self._access.credentials()
        self._channel = grpc.aio.insecure_channel(address, CHANNEL_OPTIONS) if not credentials \
            else grpc.aio.secure_channel(address, credentials, CHANNEL_OPTIONS)

    def connect(self) -> None:
        begin_to_connect(self._channel)

    async def close(self) -> None:
        await self._channel.close()

    async def unary(self, method: Method[Q, R], request: Q, patience: Patience) -> R:
        request_id = new_request_id()
        call: Any = self._channel.unary_unary(method.path, bytes_of, method.read)
        while True:
            try:
                response: R = await call(request, timeout=patience.left_s(),
                                         metadata=self._access.metadata(request_id))
                return response
            except grpc.aio.AioRpcError as error:
                failure = self.failure(error, request_id)
            await sleep(patience.delay_s(failure))

    async def stream(self, method: Method[Q, R], request: Q, patience: Patience,
                     request_id: str = "") -> AsyncGenerator[R, None]:
        """Retried until its first message. Closing the iterator cancels the call."""
        request_id = request_id or new_request_id()
        start: Any = self._channel.unary_stream(method.path, bytes_of, method.read)
        while True:
            call = start(request, timeout=patience.left_s(),
                         metadata=self._access.metadata(request_id))
            begun = False
            try:
                async for message in call:
                    begun = True
                    yield message
                return
            except grpc.aio.AioRpcError as error:
                failure = self.failure(error, request_id)
            finally:
                call.cancel()
            if begun:
                raise failure
            await sleep(patience.delay_s(failure))

    async def duplex(self, method: Method[Q, R], requests: AsyncIterator[Q],
                     patience: Patience) -> AsyncGenerator[R, None]:
        """Not retried: who has the requests begins anew."""
        request_id = new_request_id()
        start: Any = self._channel.stream_stream(method.path, bytes_of, method.read)
        call = start(requests, timeout=patience.left_s(),
                     metadata=self._access.metadata(request_id))
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise self.failure(error, request_id) from None
        finally:
            call.cancel()
