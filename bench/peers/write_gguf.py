"""Converts a Gemma 3 checkpoint to a GGUF file, for llama.cpp in bench/engines.py.

    .venv/bin/python bench/peers/write_gguf.py MODEL_DIR OUT.gguf F32|F16|BF16|Q8_0|Q4_0

For benchmarks with token ids: the weights are those of the checkpoint, the vocabulary is invented.
The file is written under a temporary name and renamed at the end.
"""

import json
import os
import pathlib
import sys

import gguf
import numpy
import torch
from safetensors import safe_open

FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "BF16": 32}  # llama.cpp's enum llama_ftype
PAD, EOS, BOS, UNK = range(4)
CONTROL_WORDS = ["<pad>", "<eos>", "<bos>", "<unk>"]


def add_vocabulary(writer, size):
    words = CONTROL_WORDS + [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [gguf.TokenType.CONTROL] * 4 + [gguf.TokenType.BYTE] * 256
    words += [f"word{i}" for i in range(len(words), size)]
    kinds += [gguf.TokenType.NORMAL] * (size - len(kinds))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(words)
    writer.add_token_scores([-float(i) for i in range(size)])
    writer.add_token_types(kinds)
    writer.add_pad_token_id(PAD)
    writer.add_eos_token_id(EOS)
    writer.add_bos_token_id(BOS)
    writer.add_unk_token_id(UNK)


def add_config(writer, config, kind):
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(float(config.get("rope_theta", 1000000.0)))
    writer.add_sliding_window(config["sliding_window"])
    writer.add_file_type(FILE_TYPES[kind])


def add_tensors(writer, path, layers, kind):
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, layers)
    dtype = gguf.GGMLQuantizationType[kind]
    with safe_open(path, "pt") as checkpoint:
        for name in checkpoint.keys():
            if name == "lm_head.weight":
                continue  # GGUF files omit lm_head, which equals the embeddings
            base, suffix = name.rsplit(".", 1)
            tensor = checkpoint.get_tensor(name).to(torch.float32).numpy()
            # llama.cpp multiplies by the stored weight w; Gemma multiplies by 1 + w.
            if base.endswith("norm"):
                tensor = tensor + 1
            target = f"{names.get_name(base)}.{suffix}"
            if tensor.ndim == 1 or kind == "F32":
                writer.add_tensor(target, tensor.astype(numpy.float32))
            else:
                writer.add_tensor(target, gguf.quants.quantize(tensor, dtype), raw_dtype=dtype)


def main():
    if len(sys.argv) != 4 or sys.argv[3] not in FILE_TYPES:
        raise SystemExit(__doc__)
    model, out, kind = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    config = json.loads((model / "config.json").read_text())
    config = config.get("text_config", config)
    part = out.with_name(out.name + ".part")
    writer = gguf.GGUFWriter(part, "gemma3")
    writer.add_name(model.name)
    add_config(writer, config, kind)
    add_vocabulary(writer, config["vocab_size"])
    add_tensors(writer, model / "model.safetensors", config["num_hidden_layers"], kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, out)


if __name__ == "__main__":
    main()
