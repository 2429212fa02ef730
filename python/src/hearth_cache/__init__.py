"""Client of Hearth: a worker's answers, and a store's prefixes for other engines.

    with Worker("127.0.0.1:50051") as worker:
        answer = worker.generate("Water boils at", max_new_tokens=8)
        print(answer.text, answer.cached_tokens)
"""

from hearth_cache._calls import Access
from hearth_cache.answers import Answer, AsyncStream, Sample, Stream
from hearth_cache.errors import (
    Busy, Cancelled, Conflict, DataLoss, DeadlineExceeded, HearthError, InvalidRequest, NotFound,
    PermissionDenied, PreconditionFailed, Unauthenticated, Unavailable)
from hearth_cache.prompts import (
    GenerateOptions, Message, Prompt, PromptOptions, model, system, user)
from hearth_cache.worker import Asked, AsyncWorker, Worker

__all__ = [
    "Access", "Answer", "Asked", "AsyncStream", "AsyncWorker", "Busy", "Cancelled", "Conflict",
    "DataLoss", "DeadlineExceeded", "GenerateOptions", "HearthError", "InvalidRequest", "Message",
    "NotFound", "PermissionDenied", "PreconditionFailed", "Prompt", "PromptOptions", "Sample",
    "Stream", "Unauthenticated", "Unavailable", "Worker", "model", "system", "user"]
