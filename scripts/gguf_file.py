"""Reads a GGUF file: the fields of its header and its tensors, dequantised block by block.

The package gguf has a reader, but it makes several numpy arrays for each of the tokenizer's 262,144
pieces and takes ten seconds; this file takes one second. The package dequantises the tensors.

The layout, all little-endian: magic, version, number of tensors, number of fields; the fields; the
tensors' names, shapes, types and offsets; padding; the tensors' bytes.
"""

import mmap
import struct

import gguf
import numpy

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# Types of a field's value. FORMATS has the types with a fixed size.
BOOL, STRING, ARRAY = 7, 8, 9
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", BOOL: "?", 10: "Q", 11: "q",
           12: "d"}
ALIGNMENT = 32
# Values to dequantise at a time: few enough that numpy's results stay in the CPU caches.
BLOCK_VALUES = 1 << 18


class Tensor:
    """A tensor: its name, its shape with the slowest dimension first, and its quantised data."""

    def __init__(self, name, shape, kind, data):
        self.name, self.shape, self._kind, self._data = name, shape, kind, data

    def blocks(self):
        """Yields the values in order as float32 arrays, some rows at a time."""
        row = self.shape[-1]
        rows = self._data.reshape(-1, self._data.size * row // numpy.prod(self.shape, dtype=int))
        step = max(1, BLOCK_VALUES // row)
        for start in range(0, len(rows), step):
            yield gguf.quants.dequantize(rows[start:start + step], self._kind).reshape(-1)


class GgufFile:
    """A GGUF file. `fields`: {name: value}; `tensors`: in the order of the file."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        magic = self._take(4)
        version, tensors, fields = self._number("I"), self._number("Q"), self._number("Q")
        if magic != MAGIC or version not in VERSIONS:
            raise ValueError(f"{path}: must be a GGUF file of version {VERSIONS}")
        self.fields = {}
        for _ in range(fields):
            name = self._string()
            self.fields[name] = self._value(self._number("I"))
        headers = [self._tensor_header() for _ in range(tensors)]
        align = self.fields.get("general.alignment", ALIGNMENT)
        start = (self._at + align - 1) // align * align
        self.tensors = [self._tensor(start, *header) for header in headers]

    def _take(self, size):
        if self._at + size > len(self._bytes):
            raise ValueError("the GGUF file ends inside its header")
        self._at += size
        return self._bytes[self._at - size:self._at]

    def _number(self, form):
        return struct.unpack("<" + form, self._take(struct.calcsize("<" + form)))[0]

    def _string(self):
        return self._take(self._number("Q")).decode("utf-8")

    def _value(self, kind):
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            return self._number(FORMATS[kind])
        kind, count = self._number("I"), self._number("Q")
        if kind in (STRING, ARRAY):
            return [self._value(kind) for _ in range(count)]
        form = f"<{count}{FORMATS[kind]}"
        return list(struct.unpack(form, self._take(struct.calcsize(form))))

    def _tensor_header(self):
        name = self._string()
        shape = [self._number("Q") for _ in range(self._number("I"))][::-1]
        return name, shape, gguf.GGMLQuantizationType(self._number("I")), self._number("Q")

    def _tensor(self, start, name, shape, kind, offset):
        block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        size = numpy.prod(shape, dtype=int) // block_values * block_bytes
        data = numpy.frombuffer(self._bytes, numpy.uint8, size, start + offset)
        if kind == gguf.GGMLQuantizationType.F32:
            data = data.view(numpy.float32)
        return Tensor(name, shape, kind, data)
