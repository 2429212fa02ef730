"""Checks the published vectors with a second implementation of the encodings.

Written from docs/dev/snapshot-format.md alone, with hashlib and struct, without code of proto/.
XXH3 digests are not checked here, but by the C++ test; all other bytes are computed again.

usage: check_vectors.py GOLDEN_DIR FORMAT_DOC
"""

import hashlib
import json
import pathlib
import struct
import sys

TEXT, INTEGER, NUMBER, BYTES, IDS = 1, 2, 3, 4, 5


def field(kind, payload):
    return struct.pack("<BI", kind, len(payload)) + payload


def text(value):
    return field(TEXT, value.encode())


def integer(value):
    return field(INTEGER, struct.pack("<Q", value))


def u32s(values):
    return struct.pack(f"<{len(values)}I", *values)


def typed_value(kind, value):
    if kind == "text":
        return text(value)
    if kind == "integer":
        return integer(value)
    return field(NUMBER, struct.pack("<d", value))


def fingerprint_bytes(fields):
    out = text("hearth.fingerprint.v1") + integer(len(fields))
    for name, kind, value in sorted(fields):
        out += text(name) + typed_value(kind, value)
    return out


def root_key(fingerprint, tenant, secret):
    message = text("hearth.root.v1") + field(BYTES, fingerprint) + text(tenant)
    return hashlib.sha256(message + field(BYTES, secret)).digest()


def segment_key(parent, token_ids, cut_offsets):
    message = text("hearth.chunk.v1") + field(BYTES, parent) + integer(len(token_ids))
    message += field(IDS, u32s(token_ids)) + field(IDS, u32s(cut_offsets))
    return hashlib.sha256(message).digest()


def check(condition, what):
    if not condition:
        sys.exit(f"vector differs: {what}")


def check_keys(vectors):
    for i, vector in enumerate(vectors["fingerprints"]):
        raw = fingerprint_bytes([tuple(f) for f in vector["fields"]])
        check(raw.hex() == vector["canonical_hex"], f"fingerprints[{i}].canonical_hex")
        check(hashlib.sha256(raw).hexdigest() == vector["digest"], f"fingerprints[{i}].digest")
    for i, vector in enumerate(vectors["roots"]):
        key = root_key(bytes.fromhex(vector["fingerprint"]), vector["tenant"],
                       bytes.fromhex(vector["secret_hex"]))
        check(key.hex() == vector["key"], f"roots[{i}]")
    for i, vector in enumerate(vectors["segments"]):
        key = segment_key(bytes.fromhex(vector["parent"]), vector["token_ids"],
                          vector["cut_offsets"])
        check(key.hex() == vector["key"], f"segments[{i}]")


def needed_objects(layer_types, window, chunk, boundary):
    tail = max(0, boundary - (window - 1))
    for begin in range(0, boundary, chunk):
        tokens = min(chunk, boundary - begin)
        if "g" in layer_types:
            yield begin, tokens, 0
        if "l" in layer_types and begin + tokens > tail:
            yield begin, tokens, 1


def check_manifest(raw, fields, digest, tokens, cuts):
    """Checks an example's manifest except its XXH3 digests; returns its objects."""
    layers, chunk = fields["layer_types"], fields["chunk_tokens"]
    objects = list(needed_objects(layers, fields["window"], chunk, len(tokens)))
    head = b"HRTHMANI" + struct.pack("<I", 1) + digest
    head += struct.pack("<5I", len(tokens), len(tokens), len(cuts), len(objects), len("causal"))
    head += b"causal" + u32s(tokens) + u32s(cuts)
    check(raw.startswith(head), "manifest state")
    at = len(head)
    for begin, count, group in objects:
        slices = layers.count("gl"[group])
        check(raw[at:at + 16] == struct.pack("<4I", begin, count, group, slices), "manifest object")
        at += 16 + 8 * slices
    check(len(raw) == at + 8, "manifest length")
    return objects


def align(offset):
    return (offset + 63) // 64 * 64


def slice_bytes(fields, tokens):
    if fields["object_layout"] == 2:
        return fields["page_bytes"]
    return 2 * fields["kv_heads"] * tokens * fields["head_dim"] * 2


def check_snapshot(data, fingerprint, manifest, tokens, cuts):
    canonical = bytes.fromhex(fingerprint["canonical_hex"])
    fields = {name: value for name, _, value in fingerprint["fields"]}
    objects = check_manifest(manifest, fields, hashlib.sha256(canonical).digest(), tokens, cuts)
    header_bytes = 40 + len(canonical) + len(manifest) + 8
    end = payload = align(header_bytes)
    slices = []
    for begin, count, group in objects:
        for _ in range(fields["layer_types"].count("gl"[group])):
            offset = align(end)
            end = offset + slice_bytes(fields, count)
            slices.append((offset, end))
    prelude = b"HRTHSNAP" + struct.pack("<IIQQQ", 1, len(canonical), len(manifest), payload, end)
    check(data[:40] == prelude, "snapshot prelude")
    check(data[40:header_bytes - 8] == canonical + manifest, "snapshot header parts")
    check(len(data) == end, "snapshot length")
    inside = set(range(header_bytes))
    for n, (offset, stop) in enumerate(slices):
        content = bytes((n * 37 + i * 11) % 256 for i in range(stop - offset))
        check(data[offset:stop] == content, f"snapshot slice {n}")
        inside.update(range(offset, stop))
    check(not any(data[i] for i in range(end) if i not in inside), "snapshot padding")


def check_doc(page, vectors):
    """Checks that the page shows the same values, so that readers can check an implementation."""
    for name in ("fingerprints", "roots", "segments"):
        value = vectors[name][0]["digest" if name == "fingerprints" else "key"]
        check(value in page, f"{name}[0] in the format's page")


def main():
    golden, page = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    vectors = json.loads((golden / "vectors.json").read_text())
    check_keys(vectors)
    check_snapshot((golden / "tiny.snapshot").read_bytes(), vectors["fingerprints"][0],
                   bytes.fromhex(vectors["manifest_hex"]), list(range(2, 22)), [5, 20])
    check_snapshot((golden / "pages.snapshot").read_bytes(), vectors["fingerprints"][2],
                   bytes.fromhex(vectors["pages_manifest_hex"]), list(range(2, 50)), [])
    check_doc(page.read_text(), vectors)
    print("all vectors agree")


if __name__ == "__main__":
    main()
