"""Requests to a worker: prompts, chats, and the options of an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Optional, TypedDict, Union, cast

from hearth_cache.v1 import inference_pb2

CacheMode = Literal["default", "read", "write", "off"]
Durability = Literal["default", "memory", "disk", "sync", "shared"]


@dataclass(frozen=True)
class Message:
    """A turn of a chat. `breakpoint`: keep a restore point at the turn's end. `token_ids`: for a
    turn of the model, the tokens of its answer; the prompt then has exactly these tokens."""

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
    breakpoints: Sequence[int]  # positions in tokens or, for a text, in bytes
    omit_generation_prompt: bool  # for a chat: leave the last message unfinished
    strict: bool  # for a chat: treat control tokens in messages as plain text


class PrefillOptions(PromptOptions, total=False):
    """The fields of PrefillRequest (proto/inference.proto), by their names."""

    durability: Durability
    ttl_s: Optional[int]
    adapter: str
    keep_s: int  # seconds during which other prefixes of the tenant are evicted first
    priority: int  # -8 to 8: each step doubles the prefix's value in eviction


class GenerateOptions(PrefillOptions, total=False):
    """The fields of GenerateRequest and SamplingParams, by their names.

    Without max_new_tokens, an answer has at most 256 tokens, or fewer if the context is full.
    `logprobs`: alternatives to report for each token; 0: only the token's own logprob.
    `json_schema`: the answer obeys this schema, a value or its JSON text. To continue a saved
    inference, pass the `grammar` of load_state() instead; an empty one counts as absent.
    """

    max_new_tokens: int
    fits_context: bool
    stop: Sequence[str]
    ignore_eos: bool
    cache: CacheMode
    wait_published: bool
    report_writes: bool
    n: int
    kv_cache: str
    kv_quantization: str
    speculate: int
    beams: int
    length_penalty: float
    early_stopping: bool
    first_draw: int
    hash_logits: bool
    json_schema: Union[str, bool, Mapping[str, Any]]
    grammar: inference_pb2.Grammar
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
_ENUMS = {"cache": "CACHE_MODE", "durability": "DURABILITY"}
_SAMPLING = inference_pb2.SamplingParams.DESCRIPTOR.fields_by_name
_OF_PREFILLS = PrefillOptions.__annotations__.keys() - PromptOptions.__annotations__.keys()


def prompt_input(prompt: Union[Prompt, inference_pb2.PromptInput],
                 options: Mapping[str, Any]) -> inference_pb2.PromptInput:
    """Makes the message of a prompt. Uses only the options of PromptOptions. A PromptInput is
    returned unchanged."""
    if isinstance(prompt, inference_pb2.PromptInput):
        return prompt
    made = inference_pb2.PromptInput(breakpoints=options.get("breakpoints", ()))
    if isinstance(prompt, str):
        made.text = prompt
    elif len(prompt) == 0:
        raise ValueError("the prompt is empty: give a text, token ids or messages")
    elif isinstance(prompt[0], Message):
        made.chat.omit_generation_prompt = options.get("omit_generation_prompt", False)
        made.chat.strict = options.get("strict", False)
        for one in cast("Sequence[Message]", prompt):
            part = inference_pb2.ContentPart(text=one.text, cache_breakpoint=one.breakpoint)
            made.chat.messages.add(role=one.role, parts=[part], token_ids=one.token_ids)
    else:
        made.token_ids.ids.extend(cast("Sequence[int]", prompt))
    return made


def generate_request(prompt: inference_pb2.PromptInput,
                     options: Mapping[str, Any]) -> inference_pb2.GenerateRequest:
    fields: dict[str, Any] = {"max_new_tokens": DEFAULT_NEW_TOKENS,
                              "fits_context": "max_new_tokens" not in options}
    sampling: dict[str, Any] = {"report_logprobs": True} if "logprobs" in options else {}
    for name, value in options.items():
        if name not in GenerateOptions.__annotations__:
            raise TypeError(f"{name}: unknown option; GenerateOptions lists all")
        if name == "json_schema":
            schema = value if isinstance(value, str) else json.dumps(value)
            fields["grammar"] = inference_pb2.Grammar(json_schema=schema)
        elif name == "grammar":
            if "json_schema" in options:
                raise ValueError("json_schema and grammar exclude each other; give one")
            if value.ByteSize() > 0:
                fields["grammar"] = value
        elif name not in PromptOptions.__annotations__:
            (sampling if name in _SAMPLING else fields)[name] = _value(name, value)
    return inference_pb2.GenerateRequest(
        prompt=prompt, sampling=inference_pb2.SamplingParams(**sampling) if sampling else None,
        **fields)


def prefill_request(prompt: inference_pb2.PromptInput,
                    options: Mapping[str, Any]) -> inference_pb2.PrefillRequest:
    fields: dict[str, Any] = {name: _value(name, options[name]) for name in _OF_PREFILLS
                              if name in options}
    return inference_pb2.PrefillRequest(prompt=prompt, **fields)


def _value(name: str, value: Any) -> Any:
    if name == "stop" and isinstance(value, str):
        return [value]  # a string is a sequence too: each letter would be a stop text
    return f"{_ENUMS[name]}_{value.upper()}" if name in _ENUMS else value
