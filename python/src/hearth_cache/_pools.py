"""Work on many numbers at once, and its results as they are done: by threads, and by tasks."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

from typing_extensions import Self

T = TypeVar("T")


class Pool:
    def __init__(self, parallel: int) -> None:
        self._threads = concurrent.futures.ThreadPoolExecutor(parallel, "hearth-ask")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def results(self, work: Callable[[int], T], count: int) -> Iterator[T]:
        begun = [self._threads.submit(work, number) for number in range(count)]
        for done in concurrent.futures.as_completed(begun):
            yield done.result()


class AsyncPool:
    def __init__(self, parallel: int) -> None:
        self._places = asyncio.Semaphore(parallel)
        self._tasks: list[asyncio.Future[Any]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *unused: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def results(self, work: Callable[[int], Awaitable[T]], count: int) -> AsyncIterator[T]:
        begun = [asyncio.ensure_future(self._run(work, number)) for number in range(count)]
        self._tasks.extend(begun)
        for done in asyncio.as_completed(begun):
            yield await done

    async def _run(self, work: Callable[[int], Awaitable[T]], number: int) -> T:
        async with self._places:
            return await work(number)
