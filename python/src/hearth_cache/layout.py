"""Fingerprints, which name what computed keys and values, and layouts, which divide a prompt's keys
and values into objects and slices.

docs/dev/snapshot-format.md specifies the encodings; tests compare them with its golden vectors.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Union

from hearth_cache.v1 import cache_store_pb2

FieldValue = Union[int, float, str]

GLOBAL, LOCAL = 0, 1  # layer groups: full attention (global), sliding window (local)
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_TEXT, _INTEGER, _NUMBER = 1, 2, 3


@dataclass(frozen=True, order=True)
class ObjectId:
    """Identifies an object: keys and values of the tokens [begin, begin + tokens) in the layers of
    one group."""

    begin: int
    tokens: int
    group: int

    @property
    def end(self) -> int:
        return self.begin + self.tokens


class _Layers:
    """Divides a prompt's keys and values into objects. `layer_types`: one letter for each layer, g
    (global) or l (local). `window` includes the current token: a local layer's tail has window - 1
    tokens."""

    layer_types: str
    window: int
    chunk_tokens: int

    def __post_init__(self) -> None:
        # Without a window, no tokens of local layers would be restored, and answers would be wrong.
        if set(self.layer_types) - {"g", "l"} or not self.layer_types:
            raise ValueError(f'layer_types must be letters g and l; got "{self.layer_types}"')
        if "l" in self.layer_types and self.window < 1:
            raise ValueError(f"window must be at least 1 for local layers; got {self.window}")

    def layers_of(self, group: int) -> list[int]:
        return [layer for layer, kind in enumerate(self.layer_types) if kind == "gl"[group]]

    def slice_bytes(self, tokens: int) -> int:
        raise NotImplementedError

    def needed_bytes(self, boundary: int) -> int:
        return sum(len(self.layers_of(one.group)) * self.slice_bytes(one.tokens)
                   for one in self.needed_objects(boundary))

    def fields(self) -> dict[str, FieldValue]:
        raise NotImplementedError

    def needed_objects(self, boundary: int) -> list[ObjectId]:
        """Returns the objects that must be stored so that computation can continue at a boundary
        (the restore rule): all global objects, and the local objects that overlap the tail."""
        needed: list[ObjectId] = []
        tail_begin = max(0, boundary - (self.window - 1)) if self.window > 0 else boundary
        for begin in range(0, boundary, self.chunk_tokens):
            tokens = min(self.chunk_tokens, boundary - begin)
            if "g" in self.layer_types:
                needed.append(ObjectId(begin, tokens, GLOBAL))
            if "l" in self.layer_types and begin + tokens > tail_begin:
                needed.append(ObjectId(begin, tokens, LOCAL))
        return needed


@dataclass(frozen=True)
class Layout(_Layers):
    """Layout of objects in rows. A slice is one layer of an object: [K,
    V][kv_head][token][head_dim], little endian."""

    layer_types: str
    window: int
    kv_heads: int
    head_dim: int
    dtype: str
    chunk_tokens: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPE_BYTES)}; got {self.dtype}")

    def slice_bytes(self, tokens: int) -> int:
        return 2 * self.kv_heads * tokens * self.head_dim * DTYPE_BYTES[self.dtype]

    def fields(self) -> dict[str, FieldValue]:
        fields = dataclasses.asdict(self)
        return {"kv_dtype": fields.pop("dtype"), **fields, "codec": "raw", "object_layout": 1}


@dataclass(frozen=True)
class PageLayout(_Layers):
    """Layout of objects in pages. A slice is one layer's page of one block, in the form that the
    engine uses. Objects are whole blocks, and only engines with the same fingerprint can read the
    pages."""

    layer_types: str
    window: int
    page_bytes: int
    chunk_tokens: int  # the engine's block

    def slice_bytes(self, tokens: int) -> int:
        return self.page_bytes

    def fields(self) -> dict[str, FieldValue]:
        return {**dataclasses.asdict(self), "codec": "raw", "object_layout": 2}


AnyLayout = Union[Layout, PageLayout]


@dataclass(frozen=True)
class Fingerprint:
    """Everything except the tokens that determines the bytes of keys and values. Engines with equal
    fingerprints share prefixes. If two fingerprints differ, Explain names a field that differs."""

    layout: AnyLayout
    fields: tuple[tuple[str, FieldValue], ...]

    @classmethod
    def of(cls, layout: AnyLayout, more: Mapping[str, FieldValue],
           exactness: str = "portable") -> Fingerprint:
        """Makes a fingerprint of the layout's fields and the fields `more`: the engine, its
        version, the digest of the weights and so on. `exactness`: "portable": results are equal
        within rounding; "invariant": the bits depend only on the tokens."""
        fields: dict[str, FieldValue] = {**layout.fields(), "exactness": exactness}
        taken = sorted(fields.keys() & more.keys())
        if taken:
            raise ValueError(f"{taken[0]}: the layout already has this field")
        fields.update(more)
        return cls(layout, tuple(sorted(fields.items())))

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(self.canonical()).digest()

    def canonical(self) -> bytes:
        encoded = [_field(_TEXT, b"hearth.fingerprint.v1"), _value(len(self.fields))]
        for name, value in self.fields:
            encoded += [_field(_TEXT, name.encode()), _value(value)]
        return b"".join(encoded)

    def message(self) -> cache_store_pb2.Fingerprint:
        made = cache_store_pb2.Fingerprint(digest=self.digest)
        for name, value in self.fields:
            kind = "text" if isinstance(value, str) else \
                "number" if isinstance(value, float) else "integer"
            setattr(made.fields.add(name=name), kind, value)
        return made


def _field(kind: int, payload: bytes) -> bytes:
    return struct.pack("<BI", kind, len(payload)) + payload


def _value(value: FieldValue) -> bytes:
    if isinstance(value, str):
        return _field(_TEXT, value.encode())
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"a fingerprint's number must be finite; got {value}")
        return _field(_NUMBER, struct.pack("<d", value + 0.0))  # -0 is written as +0
    return _field(_INTEGER, struct.pack("<Q", value))
