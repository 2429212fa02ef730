"""A client of a hearth-worker: generates answers and warms prefixes."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Optional, Union, cast

from typing_extensions import Unpack

from hearth_cache._calls import Access, PathText, Patience
from hearth_cache.aio._questions import AsyncQuestionPrompts
from hearth_cache.aio._channel import AsyncChannel, AsyncClosing, last, new_request_id
from hearth_cache.aio._results import results
from hearth_cache.aio.store import AsyncStore
from hearth_cache.answers import Answer, Asked, Cache, Question, tier_name
from hearth_cache.errors import HearthError, InvalidRequest, NotFound
from hearth_cache.prompts import (
    GenerateOptions, Message, PrefillOptions, Prompt, PromptOptions, generate_request,
    prefill_request, prompt_input)
from hearth_cache.v1 import cache_store_pb2, inference_pb2

DEFAULT_DEADLINE_S = 600.0
DEFAULT_RETRIES = 5
DEFAULT_TEMPLATE = "\n\nQuestion: {question}\nAnswer:"
_STATE_PIECE_BYTES = 1 << 20


class AsyncStream(AsyncClosing):
    """An answer while it is computed: an iterator over its tokens, each with `text`, `ids` and
    `sample`. `answer` holds the answer so far. The end of the block, or close(), ends the call."""

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


CacheList = list[Cache]


class AsyncCaches:
    """Worker.caches: named prefixes, like the context caches of hosted APIs. A cache is a restore
    point in the worker's store; create() prefills its prompt with a breakpoint at the end. The
    cache's id is the restore point's id in hexadecimal digits."""

    def __init__(self, worker: AsyncWorker, store: Optional[AsyncStore]) -> None:
        self._worker, self._kept = worker, store

    @property
    def _store(self) -> AsyncStore:
        if self._kept is None:
            raise ValueError(
                "caches need the store's address: Worker(..., store=ADDRESS)")
        return self._kept

    async def create(self, prompt: Prompt, **options: Unpack[PrefillOptions]) -> Cache:
        """Computes the part of a prompt that is not stored, and stores the prompt as a cache."""
        if not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Message):
            *others, end = cast("Sequence[Message]", prompt)
            prompt = [*others, dataclasses.replace(end, breakpoint=True)]
            options.setdefault("omit_generation_prompt", True)
        else:
            length = len(prompt.encode() if isinstance(prompt, str) else prompt)
            options["breakpoints"] = sorted({*options.get("breakpoints", ()), length})
        made = await self._worker.prefill(prompt, **options)
        told = await self._worker.explain(prompt, **options)
        # If the store already has the prompt, the prefill publishes nothing.
        kept = max(made.boundaries, default=made.published.published_tokens)
        for boundary in told.boundaries:
            if boundary.boundary == kept and boundary.restore_point_id:
                return await self.get(boundary.restore_point_id.hex())
        raise HearthError(f"the cache was not stored: {made.published.note or told.summary}")

    async def get(self, id: str) -> Cache:
        for cache in await self.list():
            if cache.id == id:
                return cache
        raise NotFound(f"no cache has the id {id}")

    async def list(self) -> CacheList:
        return [Cache(one.restore_point_id.hex(), one.tokens, one.bytes, tier_name(one.tier),
                      one.pinned, one.hits,
                      one.expires_in_s if one.HasField("expires_in_s") else None)
                for one in await self._store.list()]

    async def delete(self, id: str) -> None:
        await self._store.drop(bytes.fromhex(id))

    async def update(self, id: str, *, ttl_s: int) -> Cache:
        """Extends a cache's time to live to `ttl_s` from now. Never shortens it."""
        await self._store.renew(bytes.fromhex(id), ttl_s)
        return await self.get(id)


class AsyncWorker(AsyncClosing):
    """A hearth-worker at `address` ("host:port" or "unix:PATH"). `store`: the address of its store,
    for `caches`. `retries`: how often a call is retried when the worker is busy or unreachable.
    `deadline_s`: the default deadline of a call, with its retries. Any thread may call the blocking
    client. The asyncio client must be created and used in a running event loop."""

    def __init__(self, address: str, *, store: Optional[str] = None,
                 access: Optional[Access] = None, deadline_s: float = DEFAULT_DEADLINE_S,
                 retries: int = DEFAULT_RETRIES) -> None:
        self._channel = AsyncChannel("Inference", address, access, deadline_s, retries)
        self._store = None if store is None else AsyncStore(store, access=access)
        self.caches = AsyncCaches(self, self._store)

    async def close(self) -> None:
        await self._channel.close()
        if self._store is not None:
            await self._store.close()

    async def generate(self, prompt: Prompt, *, deadline_s: Optional[float] = None,
                       **options: Unpack[GenerateOptions]) -> Answer:
        """Returns the complete answer to a text, token ids or the messages of a chat."""
        request = generate_request(prompt_input(prompt, options), options)
        return await self._whole(request, self._channel.patience(deadline_s))

    async def chat(self, messages: Sequence[Message], *, deadline_s: Optional[float] = None,
                   **options: Unpack[GenerateOptions]) -> Answer:
        return await self.generate(messages, deadline_s=deadline_s, **options)

    def stream(self, prompt: Prompt, *, deadline_s: Optional[float] = None,
               **options: Unpack[GenerateOptions]) -> AsyncStream:
        """Yields the answer token by token."""
        request = generate_request(prompt_input(prompt, options), options)
        return self._stream(request, self._channel.patience(deadline_s))

    def _stream(self, request: inference_pb2.GenerateRequest, patience: Patience) -> AsyncStream:
        request_id = new_request_id()
        return AsyncStream(self._channel.stream("Generate", request, inference_pb2.GenerateResponse,
                                                patience, request_id), request_id)

    async def _whole(self, request: inference_pb2.GenerateRequest, patience: Patience) -> Answer:
        async with self._stream(request, patience) as stream:
            async for _ in stream:
                pass
            return stream.answer

    async def ask(self, context: Union[Prompt, inference_pb2.PromptInput],
                  questions: Sequence[Question], *,
                  template: str = DEFAULT_TEMPLATE, parallel: int = 8,
                  deadline_s: Optional[float] = None,
                  on_context: Optional[Callable[[inference_pb2.PrefillResponse], object]] = None,
                  **options: Unpack[GenerateOptions]) -> AsyncIterator[Asked]:
        """Answers many questions about one context, `parallel` at a time; yields each answer when
        it is complete. The context is prefilled once, then `on_context` is called. After a text, a
        question is inserted into `template`; after a chat, it is the user's next message; after
        token ids, it is token ids. `deadline_s` applies to each call; while the worker is busy,
        the call is retried."""
        put = prompt_input(context, options)
        if any(isinstance(one, str) == put.HasField("token_ids") for one in questions):
            raise ValueError("questions must be token ids if the context is, else texts")
        failed: dict[int, InvalidRequest] = {}

        def patience() -> Patience:
            return self._channel.patience(deadline_s, waits_for_room=True)

        async def tokens(prompt: inference_pb2.PromptInput) -> inference_pb2.TokenizeResponse:
            return await self._tokens(prompt, patience())

        async def read(number: int) -> None:
            try:
                await prompts.read_question(number, questions[number])
            except InvalidRequest as error:
                failed[number] = error

        async def answer(number: int) -> Asked:
            made: Optional[Answer] = None
            try:
                if number not in failed:
                    request = generate_request(prompts.prompt_of(number), options)
                    # Stores only the context: no other prompt begins with the context and this
                    # question.
                    request.cache = inference_pb2.CACHE_MODE_READ if mode in ("default", "read") \
                        else inference_pb2.CACHE_MODE_OFF
                    made = await self._whole(request, patience())
            except InvalidRequest as error:
                failed[number] = error
            return Asked(number, questions[number], made, failed.get(number))

        prompts, mode = AsyncQuestionPrompts(put, template, tokens), options.get("cache", "default")
        await prompts.read_context()
        async for _ in results(read, len(questions), parallel):
            pass
        shared = prompts.shared()
        if prompts.boundary > 0 and mode in ("default", "write"):
            kept = await self._channel.unary("Prefill", prefill_request(shared, options),
                                             inference_pb2.PrefillResponse, patience())
            if on_context is not None:
                on_context(kept)
        async with aclosing(results(answer, len(questions), parallel)) as answers:
            async for one in answers:
                yield one

    async def _tokens(self, prompt: inference_pb2.PromptInput,
                      patience: Optional[Patience] = None) -> inference_pb2.TokenizeResponse:
        request = inference_pb2.TokenizeRequest(prompt=prompt)
        return await self._channel.unary("Tokenize", request, inference_pb2.TokenizeResponse,
                                         patience)

    async def tokenize(self, prompt: Prompt,
                       **options: Unpack[PromptOptions]) -> inference_pb2.TokenizeResponse:
        return await self._tokens(prompt_input(prompt, options))

    async def prefill(self, prompt: Prompt, *, deadline_s: Optional[float] = None,
                      **options: Unpack[PrefillOptions]) -> inference_pb2.PrefillResponse:
        """Computes a prompt and stores it, without generating an answer."""
        request = prefill_request(prompt_input(prompt, options), options)
        return await self._channel.unary("Prefill", request, inference_pb2.PrefillResponse,
                                         self._channel.patience(deadline_s))

    async def explain(self, prompt: Prompt,
                      **options: Unpack[PrefillOptions]) -> cache_store_pb2.ExplainResponse:
        """Returns where each boundary of a prompt is stored, or why it cannot be used. `options`:
        the options with which the prompt would be stored."""
        request = inference_pb2.ExplainInputRequest(prompt=prompt_input(prompt, options),
                                                    adapter=options.get("adapter", ""))
        return await self._channel.unary("Explain", request, cache_store_pb2.ExplainResponse)

    async def model(self) -> inference_pb2.GetModelResponse:
        return await self._channel.unary("GetModel", inference_pb2.GetModelRequest(),
                                         inference_pb2.GetModelResponse)

    async def save_state(self, request_id: str, path: PathText) -> None:
        """Writes a running or finished inference to a file. `request_id`: Answer.request_id."""
        request = inference_pb2.SaveStateRequest(request_id=request_id)
        with open(path, "wb") as file:
            async for piece in self._channel.stream("SaveState", request,
                                                    inference_pb2.StateChunk):
                file.write(piece.data)

    async def load_state(self, path: PathText) -> inference_pb2.LoadStateResponse:
        """Loads a saved inference into the worker; the response has the prompt and the options that
        continue it: token_ids, first_draw, sampling, grammar and adapter."""
        async def pieces() -> AsyncIterator[inference_pb2.StateChunk]:
            with open(path, "rb") as file:
                while data := file.read(_STATE_PIECE_BYTES):
                    yield inference_pb2.StateChunk(data=data)
        return await last(self._channel.once("LoadState", pieces(),
                                             inference_pb2.LoadStateResponse,
                                             self._channel.patience()))
