"""Converts the GGUF file of Gemma 3 270M to a Hugging Face checkpoint folder. Tests and benchmarks
compare Hearth with transformers, which reads the folder.

The weights are dequantised and stored in bfloat16 under the names of transformers. The tokenizer is
rebuilt from the pieces in the GGUF header. The folder is written under a temporary name and renamed
at the end, so that it is never incomplete.

Usage: convert_model.py [--gguf models/gemma-3-270m.gguf] [--out models/gemma-3-270m]
"""

import argparse
import pathlib
import re
import shutil
import tempfile

import numpy
import safetensors

import tokenizer_model
from fetch_model import MODEL, SCRIPTS, check_disk, say
from gguf_file import GgufFile

CONFIG_FOLDER = SCRIPTS / "data" / "gemma-3-270m"
DISK_BYTES_MIN = 560_000_000  # weights 536 MB, tokenizer 5 MB; rounded up

TENSOR_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hugging_face_name(name):
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", name)
    if match is None or match[2] not in TENSOR_NAMES:
        raise SystemExit(f"unexpected tensor {name} in the GGUF file")
    layer = "" if match[1] is None else f"model.layers.{match[1]}."
    return f"{layer}{TENSOR_NAMES[match[2]]}.weight"


def to_bfloat16(values):
    """Rounds float32 to the nearest bfloat16, ties to even. REQUIRES: no NaN."""
    bits = values.view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)


def convert_weights(source, path):
    arrays, specs = {}, {}
    for index, tensor in enumerate(source.tensors):
        if index % 50 == 0:
            say(f"converting tensors {index}/{len(source.tensors)}")
        name = hugging_face_name(tensor.name)
        blocks = tensor.blocks()
        if "norm" in name:
            # GGUF files store 1 + w, Hugging Face files store w.
            blocks = (values - 1.0 for values in blocks)
        array = arrays[name] = numpy.empty(numpy.prod(tensor.shape, dtype=int), numpy.uint16)
        end = 0
        for values in blocks:
            array[end:end + values.size] = to_bfloat16(values)
            end += values.size
        specs[name] = safetensors.TensorSpec(dtype="bfloat16", shape=tensor.shape,
                                             data_ptr=array.ctypes.data, data_len=array.nbytes)
    say(f"writing {path.name}")
    safetensors.serialize_file(specs, path, metadata={"format": "pt"})


def convert_tokenizer(source, path):
    say("writing tokenizer.model")
    path.write_bytes(tokenizer_model.model_proto(
        *(source.fields[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type"))))


def make_readable(folder):
    """Makes the files readable for every user: safetensors writes files that only their owner can
    read, and a container runs as another user."""
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)


def make(gguf, out):
    out.parent.mkdir(parents=True, exist_ok=True)
    check_disk(out.parent, DISK_BYTES_MIN)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=out.parent) as temp:
        folder = pathlib.Path(temp) / "folder"
        folder.mkdir()
        source = GgufFile(gguf)
        convert_tokenizer(source, folder / "tokenizer.model")
        convert_weights(source, folder / "model.safetensors")
        for config in sorted(CONFIG_FOLDER.glob("*.json")):
            shutil.copyfile(config, folder / config.name)
        make_readable(folder)
        if out.exists():
            shutil.rmtree(out)
        folder.rename(out)
    say(f"{out} is ready")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--gguf", type=pathlib.Path, default=MODEL)
    parser.add_argument("--out", type=pathlib.Path, default=MODEL.with_suffix(""))
    args = parser.parse_args()
    make(args.gguf, args.out)


if __name__ == "__main__":
    main()
