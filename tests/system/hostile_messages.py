"""Protobuf messages of Hearth's API, encoded by hand, which normal clients would not send. Pure
functions."""

import functools
import struct

CHUNK_TOKENS = 128
MANY_TOKENS = 700000
MOST_CUTS = 65536
MESSAGE_BYTES = 3 << 20  # the largest message that a server accepts
# Number of empty elements in a message, two bytes each. The parser makes an object of each.
EMPTY_ELEMENTS = 1500000


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number, content):
    """Encodes a length-delimited field: bytes, text, or a message."""
    content = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(content)) + content


def integer(number, value):
    return varint(number << 3) + varint(value)


def packed(number, values):
    return field(number, b"".join(map(varint, values)))


def fingerprint(layers=1, kv_heads=1, head_dim=64):
    """Encodes a fingerprint with only global layers, in float32 (as in bench/bench_model.h)."""
    numbers = {"chunk_tokens": CHUNK_TOKENS, "window": 512, "kv_heads": kv_heads,
               "head_dim": head_dim, "object_layout": 1}
    texts = {"kv_dtype": "float32", "exactness": "exact", "layer_types": "g" * layers,
             "codec": "raw"}
    return b"".join([field(2, field(1, name) + integer(2, value)) for name, value in
                     numbers.items()] +
                    [field(2, field(1, name) + field(4, value)) for name, value in texts.items()])


def prefix(tokens, cuts=(), model=None):
    return (field(1, model or fingerprint()) + packed(2, tokens) +
            (packed(3, cuts) if cuts else b""))


@functools.lru_cache(maxsize=None)
def long_prefix(cuts):
    return prefix([i % 100 for i in range(MANY_TOKENS)], range(1, cuts + 1))


@functools.lru_cache(maxsize=None)
def empty_fields():
    """Encodes a prefix whose fingerprint has as many empty fields as fit into a message."""
    return field(1, field(2, b"") * EMPTY_ELEMENTS)


def fetch(prompt):
    return field(1, prompt)


explain = fetch


def lease(prompt, lease_ms=600000):
    return field(1, prompt) + integer(5, lease_ms) + integer(6, lease_ms)


def publish_begin(tokens, layers, model):
    """Encodes the begin of a publish of one chunk, with digests that match no slice."""
    digests = field(4, struct.pack("<Q", 1) * layers)
    ref = integer(2, CHUNK_TOKENS) + digests
    begin = field(1, prefix(tokens, (), model)) + packed(2, [CHUNK_TOKENS]) + field(3, ref)
    return field(1, begin + integer(4, 1))


def publish_piece(offset, data):
    return field(2, integer(3, offset) + field(4, data))


def text_prompt(text):
    """Encodes a TokenizeRequest, PrefillRequest or GenerateRequest with a text."""
    return field(1, field(1, text))


def ids_prompt(ids):
    return field(1, field(2, packed(1, ids)))


def empty_parts():
    """Encodes a chat of one message with as many empty parts as fit."""
    return field(1, field(3, field(1, field(1, "user") + field(2, b"") * EMPTY_ELEMENTS)))
