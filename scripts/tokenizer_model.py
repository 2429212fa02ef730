"""Writes a SentencePiece model from the pieces of a GGUF header.

The wire format of ModelProto is simple and written by hand, so that the project needs no compiled
Python messages for it. Field numbers are from sentencepiece_model.proto.
"""

import struct

SPACE_MARK = "\u2581"
FIRST_FREE_ID = 4  # the first id after <pad>, <eos>, <bos> and <unk>

# The token types of GGUF and of SentencePiece.
GGUF_NORMAL, GGUF_UNKNOWN, GGUF_CONTROL, GGUF_USER_DEFINED, GGUF_UNUSED, GGUF_BYTE = range(1, 7)
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BPE = 2
PAD_ID, EOS_ID, BOS_ID, UNK_ID = range(4)


def _varint(value):
    if value < 0:
        value += 1 << 64  # protobuf encodes a negative int32 as 64 bits
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field, value):
    return _varint(field << 3) + _varint(value)


def _float(field, value):
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _bytes(field, value):
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def piece_type(token_id, gguf_type):
    """Returns the type that SentencePiece needs for a token.

    In GGUF, every token that llama.cpp must not print is a control token. In Google's SentencePiece
    model only pad, eos and bos are control tokens. Turn marks and <unusedN> are user defined, so
    that they match in plain text.
    """
    if token_id == UNK_ID:
        return UNKNOWN
    if token_id in (PAD_ID, EOS_ID, BOS_ID):
        return CONTROL
    if gguf_type == GGUF_CONTROL:
        return USER_DEFINED
    return gguf_type


def _piece(token_id, text, score, gguf_type):
    kind = piece_type(token_id, gguf_type)
    if kind in (NORMAL, USER_DEFINED):
        text = text.replace(" ", SPACE_MARK)
    if kind not in (NORMAL, BYTE):
        score = 0.0
    body = _bytes(1, text.encode("utf-8")) + _float(2, score)
    return body if kind == NORMAL else body + _number(3, kind)


def model_proto(tokens, scores, types):
    """Returns the serialised ModelProto of a Gemma tokenizer with these pieces, in order."""
    if not len(tokens) == len(scores) == len(types):
        raise ValueError("tokens, scores and types must have the same length")
    out = bytearray()
    for token_id, (text, score, kind) in enumerate(zip(tokens, scores, types)):
        out += _bytes(1, _piece(token_id, text, score, kind))
    trainer = (
        _number(3, BPE)
        + _number(4, len(tokens))
        + _number(24, 0)  # treat_whitespace_as_suffix
        + _number(35, 1)  # byte_fallback
        + _number(40, UNK_ID)
        + _number(41, BOS_ID)
        + _number(42, EOS_ID)
        + _number(43, PAD_ID)
        + _bytes(45, b"<unk>")
        + _bytes(46, b"<bos>")
        + _bytes(47, b"<eos>")
        + _bytes(48, b"<pad>")
    )
    normalizer = (
        _bytes(1, b"identity")
        + _number(3, 0)  # add_dummy_prefix
        + _number(4, 0)  # remove_extra_whitespaces
        + _number(5, 1)  # field 5, escape_whitespaces: a space is matched as U+2581
    )
    return bytes(out + _bytes(2, trainer) + _bytes(3, normalizer))
