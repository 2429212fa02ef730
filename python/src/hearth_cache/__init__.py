"""Client of Hearth: Worker generates answers, Store keeps prefixes for other engines.

    with Worker("127.0.0.1:7070") as worker:
        answer = worker.generate("Water boils at", max_new_tokens=8)
        print(answer.text, answer.cached_tokens)
"""

from hearth_cache._calls import Access
from hearth_cache._exchange import Fetched, Prefix, Turn
from hearth_cache.aio.store import AsyncStore
from hearth_cache.aio.worker import AsyncCaches, AsyncStream, AsyncWorker
from hearth_cache.answers import Answer, Asked, Cache, Sample
from hearth_cache.errors import (
    Busy, Cancelled, Conflict, DataLoss, DeadlineExceeded, HearthError, InvalidRequest, NotFound,
    PermissionDenied, PreconditionFailed, Unauthenticated, Unavailable)
from hearth_cache.layout import Fingerprint, Layout, ObjectId, PageLayout
from hearth_cache.prompts import (
    GenerateOptions, Message, Prompt, PromptOptions, model, system, user)
from hearth_cache.store import Store
from hearth_cache.worker import Caches, Stream, Worker

__all__ = [
    "Access", "Answer", "Asked", "AsyncCaches", "AsyncStore", "AsyncStream",
    "AsyncWorker", "Busy", "Cache", "Caches", "Cancelled", "Conflict", "DataLoss",
    "DeadlineExceeded", "Fetched", "Fingerprint", "GenerateOptions", "HearthError",
    "InvalidRequest", "Layout", "Message", "NotFound", "ObjectId", "PageLayout",
    "PermissionDenied", "PreconditionFailed", "Prefix", "Prompt", "PromptOptions", "Sample",
    "Store", "Stream", "Turn", "Unauthenticated", "Unavailable", "Worker", "model", "system",
    "user"]
