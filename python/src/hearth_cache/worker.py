"""Worker and AsyncWorker: answers and warm prefixes of a hearth-worker."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Optional, TypeVar

from typing_extensions import Unpack

from hearth_cache._asked_prompts import AskedPrompts, Question, Tokenizing
from hearth_cache._calls import (
    Access, AsyncChannel, AsyncClosing, Channel, Closing, Method, PathText, Patience,
    new_request_id)
from hearth_cache.answers import Answer, AsyncStream, Stream
from hearth_cache.caches import AsyncCaches, Caches
from hearth_cache.errors import HearthError, InvalidRequest
from hearth_cache.prompts import (
    Durability, GenerateOptions, Message, Prompt, PromptOptions, generate_request, prefill_request,
    prompt_input)
from hearth_cache.store import AsyncStore, Store
from hearth_cache.v1 import cache_store_pb2, inference_pb2

DEFAULT_DEADLINE_S = 600.0
DEFAULT_RETRIES = 5
DEFAULT_TEMPLATE = "\n\nQuestion: {question}\nAnswer:"
_STATE_PIECE_BYTES = 1 << 20
_MANY_RETRIES = 1_000_000  # of questions: as long as the deadline lasts

_SERVICE = "/hearth.v1.Inference/"
_GENERATE = Method[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse](
    _SERVICE + "Generate", inference_pb2.GenerateResponse.FromString)
_PREFILL = Method[inference_pb2.PrefillRequest, inference_pb2.PrefillResponse](
    _SERVICE + "Prefill", inference_pb2.PrefillResponse.FromString)
_TOKENIZE = Method[inference_pb2.TokenizeRequest, inference_pb2.TokenizeResponse](
    _SERVICE + "Tokenize", inference_pb2.TokenizeResponse.FromString)
_MODEL = Method[inference_pb2.GetModelRequest, inference_pb2.GetModelResponse](
    _SERVICE + "GetModel", inference_pb2.GetModelResponse.FromString)
_EXPLAIN = Method[inference_pb2.ExplainInputRequest, cache_store_pb2.ExplainResponse](
    _SERVICE + "Explain", cache_store_pb2.ExplainResponse.FromString)
_SAVE = Method[inference_pb2.SaveStateRequest, inference_pb2.StateChunk](
    _SERVICE + "SaveState", inference_pb2.StateChunk.FromString)
_LOAD = Method[inference_pb2.StateChunk, inference_pb2.LoadStateResponse](
    _SERVICE + "LoadState", inference_pb2.LoadStateResponse.FromString)

T = TypeVar("T")


@dataclass(frozen=True)
class Asked:
    """One question and what came of it: an answer, or the error of this question alone."""

    number: int
    question: Question
    answer: Optional[Answer] = None
    error: Optional[InvalidRequest] = None


class _Asking:
    """One run of ask(): what both clients do alike."""

    def __init__(self, context: Prompt, questions: Sequence[Question], template: str,
                 options: GenerateOptions) -> None:
        if "{question}" not in template:
            raise ValueError("template: has no {question}")
        self.prompts = AskedPrompts(prompt_input(context, options), questions, template)
        self.questions = questions
        self.failed: dict[int, InvalidRequest] = {}
        self._options = options

    def context_request(self) -> Optional[inference_pb2.PrefillRequest]:
        """Of the part that is kept for all questions, once they are read."""
        shared, cache = self.prompts.shared(), self._options.get("cache", "default")
        if self.prompts.boundary == 0 or cache not in ("default", "write"):
            return None
        return prefill_request(shared, self._options.get("durability", "default"),
                               self._options.get("ttl_s"), self._options.get("adapter", ""))

    def request(self, number: int) -> inference_pb2.GenerateRequest:
        request = generate_request(self.prompts.prompt_of(number), self._options)
        # The context is kept; a question's end is of no use to anybody.
        if request.cache == inference_pb2.CACHE_MODE_DEFAULT:
            request.cache = inference_pb2.CACHE_MODE_READ
        elif request.cache == inference_pb2.CACHE_MODE_WRITE:
            request.cache = inference_pb2.CACHE_MODE_OFF
        return request

    def outcome(self, number: int, answer: Optional[Answer]) -> Asked:
        return Asked(number, self.questions[number], answer, self.failed.get(number))


class Worker(Closing):
    """A hearth-worker at `address` ("host:port" or "unix:PATH"). Methods may be called from any
    thread. `store`: the address of its store, for `caches`. `retries`: how often a call is repeated
    that was refused for now, or found nobody; `deadline_s`: how long a call may take with them,
    where the call does not say."""

    def __init__(self, address: str, *, store: Optional[str] = None,
                 access: Optional[Access] = None, deadline_s: float = DEFAULT_DEADLINE_S,
                 retries: int = DEFAULT_RETRIES) -> None:
        self._channel = Channel(address, access, deadline_s, retries)
        self._store = None if store is None else Store(store, access=access)
        self.caches = Caches(self, self._store)

    def close(self) -> None:
        self._channel.close()
        if self._store is not None:
            self._store.close()

    def generate(self, prompt: Prompt, *, deadline_s: Optional[float] = None,
                 **options: Unpack[GenerateOptions]) -> Answer:
        """The whole answer to a text, token ids or the messages of a chat."""
        request = generate_request(prompt_input(prompt, options), options)
        return self._whole(request, self._channel.patience(deadline_s))

    def chat(self, messages: Sequence[Message], *, deadline_s: Optional[float] = None,
             **options: Unpack[GenerateOptions]) -> Answer:
        return self.generate(messages, deadline_s=deadline_s, **options)

    def stream(self, prompt: Prompt, *, deadline_s: Optional[float] = None,
               **options: Unpack[GenerateOptions]) -> Stream:
        """The answer token by token."""
        request = generate_request(prompt_input(prompt, options), options)
        return self._stream(request, self._channel.patience(deadline_s))

    def _stream(self, request: inference_pb2.GenerateRequest, patience: Patience) -> Stream:
        request_id = new_request_id()
        return Stream(self._channel.stream(_GENERATE, request, patience, request_id), request_id)

    def _whole(self, request: inference_pb2.GenerateRequest, patience: Patience) -> Answer:
        with self._stream(request, patience) as stream:
            for _ in stream:
                pass
            return stream.answer

    def ask(self, context: Prompt, questions: Sequence[Question], *,
            template: str = DEFAULT_TEMPLATE, parallel: int = 8,
            deadline_s: Optional[float] = None,
            **options: Unpack[GenerateOptions]) -> Iterator[Asked]:
        """Answers many questions about one context, `parallel` at a time, as they are done. The
        context is computed and kept once. A question is put into `template`; after a chat it is the
        user's next message; after token ids it is token ids. `deadline_s` is of each call."""
        asking = _Asking(context, questions, template, options)

        def patience() -> Patience:
            return self._channel.patience(deadline_s, _MANY_RETRIES)

        def read(number: int) -> None:
            try:
                self._feed(asking.prompts.read_question(number), patience())
            except InvalidRequest as error:
                asking.failed[number] = error

        def answer(number: int) -> Asked:
            if number in asking.failed:
                return asking.outcome(number, None)
            try:
                return asking.outcome(number, self._whole(asking.request(number), patience()))
            except InvalidRequest as error:
                asking.failed[number] = error
                return asking.outcome(number, None)

        self._feed(asking.prompts.read_context(), patience())
        with concurrent.futures.ThreadPoolExecutor(parallel, "hearth-ask") as pool:
            list(pool.map(read, range(len(questions))))
            kept = asking.context_request()
            if kept is not None:
                _last(self._channel.stream(_PREFILL, kept, patience()))
            answers = [pool.submit(answer, number) for number in range(len(questions))]
            try:
                for done in concurrent.futures.as_completed(answers):
                    yield done.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _feed(self, tokenizing: Tokenizing, patience: Patience) -> None:
        try:
            wanted = next(tokenizing)
            while True:
                wanted = tokenizing.send(self._tokens(wanted, patience))
        except StopIteration:
            pass

    def _tokens(self, prompt: inference_pb2.PromptInput,
                patience: Patience) -> inference_pb2.TokenizeResponse:
        request = inference_pb2.TokenizeRequest(prompt=prompt)
        return self._channel.unary(_TOKENIZE, request, patience)

    def tokenize(self, prompt: Prompt,
                 **options: Unpack[PromptOptions]) -> inference_pb2.TokenizeResponse:
        return self._tokens(prompt_input(prompt, options), self._channel.patience())

    def prefill(self, prompt: Prompt, *, ttl_s: Optional[int] = None,
                durability: Durability = "default", adapter: str = "",
                deadline_s: Optional[float] = None,
                **options: Unpack[PromptOptions]) -> inference_pb2.PrefillResponse:
        """Computes a prompt and keeps it in the store; generates nothing."""
        request = prefill_request(prompt_input(prompt, options), durability, ttl_s, adapter)
        return _last(self._channel.stream(_PREFILL, request, self._channel.patience(deadline_s)))

    def explain(self, prompt: Prompt, *, adapter: str = "",
                **options: Unpack[PromptOptions]) -> cache_store_pb2.ExplainResponse:
        """For each boundary of a prompt where it is stored, or why it cannot be used."""
        request = inference_pb2.ExplainInputRequest(prompt=prompt_input(prompt, options),
                                                    adapter=adapter)
        return self._channel.unary(_EXPLAIN, request, self._channel.patience())

    def model(self) -> inference_pb2.GetModelResponse:
        return self._channel.unary(_MODEL, inference_pb2.GetModelRequest(),
                                   self._channel.patience())

    def save_state(self, request_id: str, path: PathText) -> None:
        """Writes an inference, running or finished, to a file: Answer.request_id names it."""
        request = inference_pb2.SaveStateRequest(request_id=request_id)
        with open(path, "wb") as file:
            for piece in self._channel.stream(_SAVE, request, self._channel.patience()):
                file.write(piece.data)

    def load_state(self, path: PathText) -> inference_pb2.LoadStateResponse:
        """Gives the worker a saved inference; the answer says how to go on."""
        with open(path, "rb") as file:
            pieces = (inference_pb2.StateChunk(data=data)
                      for data in iter(lambda: file.read(_STATE_PIECE_BYTES), b""))
            return _last(self._channel.duplex(_LOAD, pieces, self._channel.patience()))


class AsyncWorker(AsyncClosing):
    """Worker for asyncio; to be made within a running loop."""

    def __init__(self, address: str, *, store: Optional[str] = None,
                 access: Optional[Access] = None, deadline_s: float = DEFAULT_DEADLINE_S,
                 retries: int = DEFAULT_RETRIES) -> None:
        self._channel = AsyncChannel(address, access, deadline_s, retries)
        self._store = None if store is None else AsyncStore(store, access=access)
        self.caches = AsyncCaches(self, self._store)

    async def close(self) -> None:
        await self._channel.close()
        if self._store is not None:
            await self._store.close()

    async def generate(self, prompt: Prompt, *, deadline_s: Optional[float] = None,
                       **options: Unpack[GenerateOptions]) -> Answer:
        request = generate_request(prompt_input(prompt, options), options)
        return await self._whole(request, self._channel.patience(deadline_s))

    async def chat(self, messages: Sequence[Message], *, deadline_s: Optional[float] = None,
                   **options: Unpack[GenerateOptions]) -> Answer:
        return await self.generate(messages, deadline_s=deadline_s, **options)

    def stream(self, prompt: Prompt, *, deadline_s: Optional[float] = None,
               **options: Unpack[GenerateOptions]) -> AsyncStream:
        request = generate_request(prompt_input(prompt, options), options)
        return self._stream(request, self._channel.patience(deadline_s))

    def _stream(self, request: inference_pb2.GenerateRequest, patience: Patience) -> AsyncStream:
        request_id = new_request_id()
        return AsyncStream(self._channel.stream(_GENERATE, request, patience, request_id),
                           request_id)

    async def _whole(self, request: inference_pb2.GenerateRequest, patience: Patience) -> Answer:
        async with self._stream(request, patience) as stream:
            async for _ in stream:
                pass
            return stream.answer

    async def ask(self, context: Prompt, questions: Sequence[Question], *,
                  template: str = DEFAULT_TEMPLATE, parallel: int = 8,
                  deadline_s: Optional[float] = None,
                  **options: Unpack[GenerateOptions]) -> AsyncIterator[Asked]:
        asking = _Asking(context, questions, template, options)
        places = asyncio.Semaphore(parallel)

        def patience() -> Patience:
            return self._channel.patience(deadline_s, _MANY_RETRIES)

        async def read(number: int) -> None:
            async with places:
                try:
                    await self._feed(asking.prompts.read_question(number), patience())
                except InvalidRequest as error:
                    asking.failed[number] = error

        async def answer(number: int) -> Asked:
            async with places:
                if number in asking.failed:
                    return asking.outcome(number, None)
                try:
                    made = await self._whole(asking.request(number), patience())
                    return asking.outcome(number, made)
                except InvalidRequest as error:
                    asking.failed[number] = error
                    return asking.outcome(number, None)

        await self._feed(asking.prompts.read_context(), patience())
        await asyncio.gather(*[read(number) for number in range(len(questions))])
        kept = asking.context_request()
        if kept is not None:
            await _last_async(self._channel.stream(_PREFILL, kept, patience()))
        answers = [asyncio.ensure_future(answer(number)) for number in range(len(questions))]
        try:
            for done in asyncio.as_completed(answers):
                yield await done
        finally:
            for task in answers:
                task.cancel()
            await asyncio.gather(*answers, return_exceptions=True)

    async def _feed(self, tokenizing: Tokenizing, patience: Patience) -> None:
        try:
            wanted = next(tokenizing)
            while True:
                wanted = tokenizing.send(await self._tokens(wanted, patience))
        except StopIteration:
            pass

    async def _tokens(self, prompt: inference_pb2.PromptInput,
                      patience: Patience) -> inference_pb2.TokenizeResponse:
        request = inference_pb2.TokenizeRequest(prompt=prompt)
        return await self._channel.unary(_TOKENIZE, request, patience)

    async def tokenize(self, prompt: Prompt,
                       **options: Unpack[PromptOptions]) -> inference_pb2.TokenizeResponse:
        return await self._tokens(prompt_input(prompt, options), self._channel.patience())

    async def prefill(self, prompt: Prompt, *, ttl_s: Optional[int] = None,
                      durability: Durability = "default", adapter: str = "",
                      deadline_s: Optional[float] = None,
                      **options: Unpack[PromptOptions]) -> inference_pb2.PrefillResponse:
        request = prefill_request(prompt_input(prompt, options), durability, ttl_s, adapter)
        return await _last_async(
            self._channel.stream(_PREFILL, request, self._channel.patience(deadline_s)))

    async def explain(self, prompt: Prompt, *, adapter: str = "",
                      **options: Unpack[PromptOptions]) -> cache_store_pb2.ExplainResponse:
        request = inference_pb2.ExplainInputRequest(prompt=prompt_input(prompt, options),
                                                    adapter=adapter)
        return await self._channel.unary(_EXPLAIN, request, self._channel.patience())

    async def model(self) -> inference_pb2.GetModelResponse:
        return await self._channel.unary(_MODEL, inference_pb2.GetModelRequest(),
                                         self._channel.patience())

    async def save_state(self, request_id: str, path: PathText) -> None:
        request = inference_pb2.SaveStateRequest(request_id=request_id)
        with open(path, "wb") as file:
            async for piece in self._channel.stream(_SAVE, request, self._channel.patience()):
                file.write(piece.data)

    async def load_state(self, path: PathText) -> inference_pb2.LoadStateResponse:
        async def pieces() -> AsyncIterator[inference_pb2.StateChunk]:
            with open(path, "rb") as file:
                while data := file.read(_STATE_PIECE_BYTES):
                    yield inference_pb2.StateChunk(data=data)
        return await _last_async(
            self._channel.duplex(_LOAD, pieces(), self._channel.patience()))


def _last(messages: Iterator[T]) -> T:
    return _given([*messages])


async def _last_async(messages: AsyncIterator[T]) -> T:
    return _given([message async for message in messages])


def _given(messages: list[T]) -> T:
    if not messages:
        raise HearthError("the call ended without an answer")
    return messages[-1]
