"""What is asked of a worker: prompts, chats, and the options of an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Optional, TypedDict, Union, cast

from hearth_cache.v1 import cache_store_pb2, inference_pb2

CacheMode = Literal["default", "read", "write", "off"]
Durability = Literal["default", "memory", "disk", "sync", "shared"]


@dataclass(frozen=True)
class Message:
    """A turn of a chat. `breakpoint`: its end is a boundary worth keeping. `token_ids`: of a
    model's turn, those of its answer, which then stand in the prompt as they are."""

    role: str
    text: str
    breakpoint: bool = False
    token_ids: Sequence[int] = ()


def system(text: str, *, breakpoint: bool = False) -> Message:
    return Message("system", text, breakpoint)


def user(text: str, *, breakpoint: bool = False) -> Message:
    return Message("user", text, breakpoint)


def model(text: str, token_ids: Sequence[int] = ()) -> Message:
    return Message("model", text, token_ids=token_ids)


# A text, token ids, or the messages of a chat.
Prompt = Union[str, Sequence[int], Sequence[Message]]


class PromptOptions(TypedDict, total=False):
    breakpoints: Sequence[int]  # token positions, or byte offsets of a text
    omit_generation_prompt: bool  # of a chat: its last message is left unfinished
    strict: bool  # of a chat: control tokens in its messages are plain characters


class GenerateOptions(PromptOptions, total=False):
    """The fields of GenerateRequest and SamplingParams (proto/inference.proto), by their names.

    Without max_new_tokens an answer has at most 256, and fewer where the context ends.
    `logprobs`: the alternatives reported with each token, 0 for the token's own alone.
    """

    max_new_tokens: int
    fits_context: bool
    stop: Sequence[str]
    ignore_eos: bool
    cache: CacheMode
    durability: Durability
    ttl_s: int
    wait_published: bool
    report_writes: bool
    n: int
    adapter: str
    kv_cache: str
    kv_quantization: str
    speculate: int
    beams: int
    length_penalty: float
    early_stopping: bool
    first_draw: int
    hash_logits: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    server_defaults: bool
    logprobs: int
    prompt_logprobs: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    stop_token_ids: Sequence[int]
    bad_token_ids: Sequence[int]
    min_tokens: int


DEFAULT_NEW_TOKENS = 256
_PROMPT_OPTIONS = frozenset(PromptOptions.__annotations__)
_SAMPLING = frozenset(inference_pb2.SamplingParams.DESCRIPTOR.fields_by_name)


def prompt_input(prompt: Prompt, options: Mapping[str, Any]) -> inference_pb2.PromptInput:
    """REQUIRES: of `options` those of PromptOptions alone are looked at."""
    made = inference_pb2.PromptInput(breakpoints=options.get("breakpoints", ()))
    if isinstance(prompt, str):
        made.text = prompt
    elif len(prompt) == 0:
        raise ValueError("the prompt is empty: give a text, token ids or messages")
    elif isinstance(prompt[0], Message):
        made.chat.CopyFrom(_chat(cast("Sequence[Message]", prompt), options))
    else:
        made.token_ids.ids.extend(cast("Sequence[int]", prompt))
    return made


def _chat(messages: Sequence[Message], options: Mapping[str, Any]) -> inference_pb2.Chat:
    chat = inference_pb2.Chat(
        omit_generation_prompt=options.get("omit_generation_prompt", False),
        strict=options.get("strict", False))
    for message in messages:
        part = inference_pb2.ContentPart(text=message.text, cache_breakpoint=message.breakpoint)
        chat.messages.add(role=message.role, parts=[part], token_ids=message.token_ids)
    return chat


def generate_request(prompt: inference_pb2.PromptInput,
                     options: Mapping[str, Any]) -> inference_pb2.GenerateRequest:
    request = inference_pb2.GenerateRequest(prompt=prompt, max_new_tokens=DEFAULT_NEW_TOKENS)
    request.fits_context = "max_new_tokens" not in options
    for name, value in options.items():
        if name not in GenerateOptions.__annotations__:
            raise TypeError(f"{name}: there is no such option; GenerateOptions lists them")
        if name == "cache":
            request.cache = cast("inference_pb2.CacheMode",
                                 inference_pb2.CacheMode.Value(f"CACHE_MODE_{value.upper()}"))
        elif name == "durability":
            request.durability = durability_of(value)
        elif name == "logprobs":
            request.sampling.report_logprobs = True
            request.sampling.logprobs = value
        elif name not in _PROMPT_OPTIONS:
            _set(request.sampling if name in _SAMPLING else request, name, value)
    return request


def _set(message: Any, name: str, value: Any) -> None:
    if isinstance(value, Mapping):
        getattr(message, name).update(value)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        getattr(message, name).extend(value)
    else:
        setattr(message, name, value)


def durability_of(name: Durability) -> cache_store_pb2.Durability:
    return cast("cache_store_pb2.Durability",
                cache_store_pb2.Durability.Value(f"DURABILITY_{name.upper()}"))


def prefill_request(prompt: inference_pb2.PromptInput, durability: Durability,
                    ttl_s: Optional[int], adapter: str) -> inference_pb2.PrefillRequest:
    return inference_pb2.PrefillRequest(prompt=prompt, durability=durability_of(durability),
                                        ttl_s=ttl_s or 0, adapter=adapter)
