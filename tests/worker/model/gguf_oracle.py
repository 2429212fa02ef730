"""Compares the worker's logits for GGUF files with those of transformers for the same weights in
float32, decoded by the Python package gguf: each tensor type, and mixed types in one layer.

    gguf_oracle.py INVARIANT_PROBE [FILE]

With FILE (a GGUF file of Gemma 3 270M), only this file is tested. Otherwise each generated file is
also compared with a GGUF file of the same values in float32: the logits must have the same bits.
"""

import pathlib
import sys
import tempfile

import gguf
import numpy
import torch
from transformers import Gemma3ForCausalLM

from model_oracle import GREEDY, LINEAR, Probe, compare, their_logits, tiny_config

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "scripts"))
import convert_model  # noqa: E402
from gguf_file import GgufFile  # noqa: E402

Kind = gguf.GGMLQuantizationType
KINDS = [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1,
         Kind.Q4_K, Kind.Q5_K, Kind.Q6_K]
GEOMETRY = dict(hidden_size=256, intermediate_size=512, head_dim=64, query_pre_attn_scalar=64)
NAMES = {ours: theirs for theirs, ours in convert_model.TENSOR_NAMES.items()}


def ggml_name(name):
    """Converts `model.layers.3.self_attn.q_proj.weight` to `blk.3.attn_q.weight`."""
    if name == "lm_head.weight":
        return "output.weight"
    parts = name.removesuffix(".weight").split(".")
    if parts[1] != "layers":
        return NAMES[".".join(parts)] + ".weight"
    return f"blk.{parts[2]}.{NAMES['.'.join(parts[3:])]}.weight"


def halves(blocks, offset, rng, least, most):
    values = rng.uniform(least, most, len(blocks)).astype(numpy.float16)
    blocks[:, offset:offset + 2] = values.view(numpy.uint8).reshape(-1, 2)


def blocks_of(values, kind, rng):
    """Returns `values` quantized to type `kind`; random blocks if the package gguf cannot."""
    if kind in (Kind.Q4_K, Kind.Q5_K, Kind.Q6_K):
        size, of_block = gguf.GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (values.size // size, of_block), dtype=numpy.uint8)
        if kind == Kind.Q6_K:
            halves(blocks, 208, rng, -0.00008, 0.00008)
        else:
            halves(blocks, 0, rng, 0, 0.0008)
            halves(blocks, 2, rng, 0, 0.006)
        return blocks.reshape(values.shape[0], -1)
    return gguf.quants.quantize(values, kind)


def write(path, config, tensors):
    """Writes a GGUF file. `tensors`: name -> (type, array encoded by the package gguf)."""
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_sliding_window(config.sliding_window)
    writer.add_array("gemma3.attention.sliding_window_pattern",
                     [kind == "sliding_attention" for kind in config.layer_types])
    factor = config.rope_parameters["full_attention"].get("factor")
    if factor:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(factor)
    for name, (kind, data) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(model, kind_of, rng):
    """Returns the tensors quantized to the types kind_of(name), and the same values in float32.
    Also copies these values into `model`."""
    stored, wide = {}, {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = parameter.numpy()
            shift = numpy.float32(parameter.dim() == 1)
            kind = Kind.F32 if shift else kind_of(name)
            data = values + shift if kind == Kind.F32 else blocks_of(values, kind, rng)
            exact = gguf.quants.dequantize(data, kind).reshape(values.shape)
            stored[ggml_name(name)] = (kind, data)
            wide[ggml_name(name)] = (Kind.F32, exact)
            parameter.copy_(torch.from_numpy(exact - shift))
    return stored, wide


def answer(binary, path, ids, vocab):
    probe = Probe(binary, path)
    said, logits = probe.answer(vocab, ids=ids, chunk=32, greedy=GREEDY, restores=[32])
    probe.close()
    assert said["restored"] == [said["sha256"]], "different bits after a restore"
    return said, logits


def check(binary, folder, name, kind_of, changes=None):
    rng = numpy.random.default_rng(len(name))
    torch.manual_seed(5)
    config = tiny_config({**GEOMETRY, **(changes or {})})
    model = Gemma3ForCausalLM(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2 if parameter.dim() == 1 else 0.1)
    stored, wide = make(model, kind_of, rng)
    write(folder / "stored", config, stored)
    write(folder / "wide", config, wide)
    ids = torch.randint(0, config.vocab_size, (100,)).tolist()
    said, logits = answer(binary, folder / "stored", ids, config.vocab_size)
    difference = compare(name, logits, their_logits(model, ids + said["greedy"][:-1]))
    of_wide, _ = answer(binary, folder / "wide", ids, config.vocab_size)
    assert said["sha256"] == of_wide["sha256"], f"{name}: different bits than with float32 weights"
    print(f"{name:24} {difference:.1e}", flush=True)


def as_q4_k_m(name):
    """Returns the tensor's type in a Q4_K_M file that llama.cpp writes of a model whose rows have
    640 or 1,152 values, which is not a multiple of 256."""
    for part, kind in (("q_proj", Kind.Q5_0), ("k_proj", Kind.Q5_0), ("o_proj", Kind.Q4_K),
                       ("gate_proj", Kind.Q5_0), ("layers.0.mlp.down_proj", Kind.Q6_K),
                       ("down_proj", Kind.Q4_K)):
        if part in name:
            return kind
    return Kind.Q8_0


def check_real(binary, path):
    source = GgufFile(path)
    model = Gemma3ForCausalLM.from_pretrained(
        pathlib.Path(__file__).parents[3] / "models/gemma-3-270m", dtype=torch.float32).eval()
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for tensor in source.tensors:
            name = convert_model.hugging_face_name(tensor.name)
            values = numpy.concatenate(list(tensor.blocks())).reshape(tensor.shape)
            parameters[name].copy_(torch.from_numpy(values - ("norm" in name)))
    ids = [2] + list(range(1000, 1600, 6))
    said, logits = answer(binary, path, ids, model.config.vocab_size)
    difference = compare("270M", logits, their_logits(model, ids + said["greedy"][:-1]))
    print(f"{path}: {difference:.1e}, {len(ids)} tokens, decode "
          f"{sorted(said['decode_ms'])[len(said['decode_ms']) // 2]:.1f} ms")


def main():
    if len(sys.argv) > 2:
        return check_real(*sys.argv[1:])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for kind in KINDS:
            check(sys.argv[1], folder, kind.name, lambda _: kind)
        check(sys.argv[1], folder, "as Q4_K_M", as_q4_k_m, LINEAR)
        check(sys.argv[1], folder, "gate and up differ",
              lambda name: Kind.Q6_K if "gate" in name or "v_proj" in name else Kind.Q4_0)
        check(sys.argv[1], folder, "head of its own", as_q4_k_m, dict(tie_word_embeddings=False))
    print("ok")


if __name__ == "__main__":
    main()
