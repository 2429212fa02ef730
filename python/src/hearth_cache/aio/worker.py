"""A client of a hearth-worker: answers and warm prefixes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Optional, TypeVar

from typing_extensions import Unpack

from hearth_cache._asked_prompts import Question, Tokenizing
from hearth_cache._asking import Asked, Asking
from hearth_cache._calls import Access, Method, PathText, Patience, new_request_id
from hearth_cache._pools import AsyncPool
from hearth_cache.aio._channel import AsyncChannel, AsyncClosing
from hearth_cache.aio.caches import AsyncCaches
from hearth_cache.aio.store import AsyncStore
from hearth_cache.answers import Answer
from hearth_cache.errors import HearthError, InvalidRequest
from hearth_cache.prompts import (
    Durability, GenerateOptions, Message, Prompt, PromptOptions, generate_request, prefill_request,
    prompt_input)
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


class AsyncStream(AsyncClosing):
    """An answer while it is computed: an iterator over its tokens, each with `text`, `ids` and
    `sample`. `answer` has what came so far. Leaving the block, or close(), ends the call."""

    def __init__(self, messages: AsyncGenerator[inference_pb2.GenerateResponse, None],
                 request_id: str) -> None:
        self.answer = Answer(request_id)
        self._messages = messages

    async def __aiter__(self) -> AsyncIterator[inference_pb2.GeneratedToken]:
        async for message in self._messages:
            token = self.answer.take(message)
            if token is not None:
                yield token

    async def close(self) -> None:
        await self._messages.aclose()


class AsyncWorker(AsyncClosing):
    """A hearth-worker at `address` ("host:port" or "unix:PATH"). `store`: the address of its store,
    for `caches`. `retries`: how often a call is repeated that was refused for now, or found nobody;
    `deadline_s`: how long a call may take with them, where the call does not say. Methods that
    block may be called from any thread; those for asyncio need its loop, here already."""

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
        """The whole answer to a text, token ids or the messages of a chat."""
        request = generate_request(prompt_input(prompt, options), options)
        return await self._whole(request, self._channel.patience(deadline_s))

    async def chat(self, messages: Sequence[Message], *, deadline_s: Optional[float] = None,
                   **options: Unpack[GenerateOptions]) -> Answer:
        return await self.generate(messages, deadline_s=deadline_s, **options)

    def stream(self, prompt: Prompt, *, deadline_s: Optional[float] = None,
               **options: Unpack[GenerateOptions]) -> AsyncStream:
        """The answer token by token."""
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
        """Answers many questions about one context, `parallel` at a time, as they are done. The
        context is computed and kept once. A question is put into `template`; after a chat it is the
        user's next message; after token ids it is token ids. `deadline_s` is of each call."""
        asking = Asking(context, questions, template, options)

        def patience() -> Patience:
            return self._channel.patience(deadline_s, _MANY_RETRIES)

        async def read(number: int) -> None:
            try:
                await self._feed(asking.prompts.read_question(number), patience())
            except InvalidRequest as error:
                asking.failed[number] = error

        async def answer(number: int) -> Asked:
            if number in asking.failed:
                return asking.outcome(number, None)
            try:
                made = await self._whole(asking.request(number), patience())
                return asking.outcome(number, made)
            except InvalidRequest as error:
                asking.failed[number] = error
                return asking.outcome(number, None)

        await self._feed(asking.prompts.read_context(), patience())
        async with AsyncPool(parallel) as pool:
            async for _ in pool.results(read, len(questions)):
                pass
            kept = asking.context_request()
            if kept is not None:
                await _last(self._channel.stream(_PREFILL, kept, patience()))
            async for done in pool.results(answer, len(questions)):
                yield done

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
        """Computes a prompt and keeps it in the store; generates nothing."""
        request = prefill_request(prompt_input(prompt, options), durability, ttl_s, adapter)
        return await _last(
            self._channel.stream(_PREFILL, request, self._channel.patience(deadline_s)))

    async def explain(self, prompt: Prompt, *, adapter: str = "",
                      **options: Unpack[PromptOptions]) -> cache_store_pb2.ExplainResponse:
        """For each boundary of a prompt where it is stored, or why it cannot be used."""
        request = inference_pb2.ExplainInputRequest(prompt=prompt_input(prompt, options),
                                                    adapter=adapter)
        return await self._channel.unary(_EXPLAIN, request, self._channel.patience())

    async def model(self) -> inference_pb2.GetModelResponse:
        return await self._channel.unary(_MODEL, inference_pb2.GetModelRequest(),
                                         self._channel.patience())

    async def save_state(self, request_id: str, path: PathText) -> None:
        """Writes an inference, running or finished, to a file: Answer.request_id names it."""
        request = inference_pb2.SaveStateRequest(request_id=request_id)
        with open(path, "wb") as file:
            async for piece in self._channel.stream(_SAVE, request, self._channel.patience()):
                file.write(piece.data)

    async def load_state(self, path: PathText) -> inference_pb2.LoadStateResponse:
        """Gives the worker a saved inference; the answer says how to go on."""
        async def pieces() -> AsyncIterator[inference_pb2.StateChunk]:
            with open(path, "rb") as file:
                while data := file.read(_STATE_PIECE_BYTES):
                    yield inference_pb2.StateChunk(data=data)
        return await _last(
            self._channel.duplex(_LOAD, pieces(), self._channel.patience()))


async def _last(messages: AsyncIterator[T]) -> T:
    for message in [message async for message in messages][-1:]:
        return message
    raise HearthError("the call ended without an answer")
