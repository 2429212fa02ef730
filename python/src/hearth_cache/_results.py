"""Runs work(0) to work(count - 1) on threads; yields each result when it is ready."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")


def results(work: Callable[[int], T], count: int, parallel: int) -> Generator[T, None, None]:
    with concurrent.futures.ThreadPoolExecutor(parallel, "hearth-ask") as threads:
        begun = [threads.submit(work, number) for number in range(count)]
        try:
            for done in concurrent.futures.as_completed(begun):
                yield done.result()
        finally:
            threads.shutdown(cancel_futures=True)
