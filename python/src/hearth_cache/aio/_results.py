"""Runs work(0) to work(count - 1) in tasks; yields each result when it is ready. _results.py is the
same with threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def results(work: Callable[[int], Awaitable[T]], count: int,
                  parallel: int) -> AsyncGenerator[T, None]:
    places = asyncio.Semaphore(parallel)

    async def run(number: int) -> T:
        async with places:
            return await work(number)

    begun = [asyncio.ensure_future(run(number)) for number in range(count)]
    try:
        for done in asyncio.as_completed(begun):
            yield await done
    finally:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
