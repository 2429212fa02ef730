"""Writes Gemma 3 checkpoints with random weights, in Hugging Face's format and of any geometry.

    .venv/bin/python scripts/make_checkpoint.py OUT --geometry tiny
    .venv/bin/python scripts/make_checkpoint.py OUT --geometry 1b --dtype bfloat16 --shards 4
    .venv/bin/python scripts/make_checkpoint.py OUT --set sliding_window=8 --set layer_types=lgll
    .venv/bin/python scripts/make_checkpoint.py OUT --geometry 4b --nested --style old

Equal arguments write equal bytes. --set overrides a field of the text config; layer_types may be
given as one letter for each layer (l local, g global). --style old writes sliding_window_pattern,
rope_theta, rope_local_base_freq and rope_scaling instead of layer_types and rope_parameters.
--nested puts the text config below text_config, and adds two vision tensors and the name prefix of
multimodal checkpoints. OUT must not exist; it appears when it is complete.
"""

import argparse
import json
import pathlib
import shutil
import sys
import tempfile

import torch
from safetensors.torch import save_file

CONFIGS = pathlib.Path(__file__).resolve().parent / "data/configs"
TINY = {
    "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "sliding_window": 32,
    "query_pre_attn_scalar": 16, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": None,
    "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": None,
    "final_logit_softcapping": None, "tie_word_embeddings": True, "attention_bias": False,
    "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
KINDS = {"l": "sliding_attention", "g": "full_attention"}


def text_config(arguments):
    config = TINY
    if arguments.geometry != "tiny":
        config = json.loads((CONFIGS / f"gemma-3-{arguments.geometry}.json").read_text())
    config = dict(config.get("text_config", config))
    for assignment in arguments.set:
        name, equals, value = assignment.partition("=")
        if not equals:
            sys.exit(f"make_checkpoint: --set must be NAME=VALUE; got {assignment}")
        if name == "layer_types" and set(value) <= set(KINDS):
            config[name] = [KINDS[letter] for letter in value]
            config["num_hidden_layers"] = len(value)
            continue
        try:
            config[name] = json.loads(value)
        except json.JSONDecodeError:
            config[name] = value
    if len(config["layer_types"]) != config["num_hidden_layers"]:
        sys.exit(f"make_checkpoint: {len(config['layer_types'])} layer_types for "
                 f"{config['num_hidden_layers']} layers: set layer_types too")
    return config


def styled(config, style):
    """Returns the geometry in the form of an old or a new config.json."""
    config = dict(config)
    if style == "old":
        kinds, pattern = config["layer_types"], config.get("sliding_window_pattern", 6)
        expected = [KINDS["l" if (i + 1) % pattern else "g"] for i in range(len(kinds))]
        if kinds != expected:
            sys.exit(f"make_checkpoint: --style old cannot express these layer_types by "
                     f"sliding_window_pattern {pattern}")
        config["sliding_window_pattern"] = pattern
        del config["layer_types"]
        return config
    scaling = config.pop("rope_scaling", None) or {"rope_type": "default"}
    local = {"rope_type": "default", "rope_theta": config.pop("rope_local_base_freq", 10000.0)}
    full = {**scaling, "rope_theta": config.pop("rope_theta", 1000000.0)}
    config.pop("sliding_window_pattern", None)
    config["rope_parameters"] = {"full_attention": full, "sliding_attention": local}
    return config


def tensor_shapes(config):
    """Yields (name without prefix, shape) in the order in which tensors are drawn."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    yield "embed_tokens.weight", (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"layers.{i}."
        for name, shape in (("q_proj", (queries, hidden)), ("k_proj", (keys, hidden)),
                            ("v_proj", (keys, hidden)), ("o_proj", (hidden, queries)),
                            ("q_norm", (config["head_dim"],)), ("k_norm", (config["head_dim"],))):
            yield f"{layer}self_attn.{name}.weight", shape
        for name, shape in (("gate_proj", (inner, hidden)), ("up_proj", (inner, hidden)),
                            ("down_proj", (hidden, inner))):
            yield f"{layer}mlp.{name}.weight", shape
        for name in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                     "post_feedforward_layernorm"):
            yield f"{layer}{name}.weight", (hidden,)
    yield "norm.weight", (hidden,)


def make_tensors(config, arguments):
    generator = torch.Generator().manual_seed(arguments.seed)
    dtype = DTYPES[arguments.dtype]

    def draw(shape):
        # Scales random weights by the width, because with too small weights all logits would be
        # nearly equal.
        scale = 0.2 if len(shape) == 1 else shape[-1] ** -0.5
        return (torch.randn(shape, generator=generator) * scale).to(dtype)

    prefix = "language_model.model." if arguments.nested else "model."
    head = "language_model.lm_head.weight" if arguments.nested else "lm_head.weight"
    for name, shape in tensor_shapes(config):
        yield prefix + name, draw(shape)
    if not config.get("tie_word_embeddings", True):
        yield head, draw((config["vocab_size"], config["hidden_size"]))
    if arguments.nested:
        yield "vision_tower.vision_model.embeddings.patch_embedding.bias", draw((8,))
        yield "multi_modal_projector.mm_soft_emb_norm.weight", draw((8,))


def write_weights(folder, tensors, shards):
    names = list(tensors)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    index = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        index.update(dict.fromkeys(part, file))
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=1))


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--geometry", default="tiny",
                        choices=["tiny", "270m", "1b", "4b", "12b", "27b"])
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--style", default="new", choices=["old", "new"])
    parser.add_argument("--nested", action="store_true")
    parser.add_argument("--dtype", default="bfloat16", choices=list(DTYPES))
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", type=pathlib.Path, metavar="DIR",
                        help="copy tokenizer.model from this folder; without it a worker serves "
                             "only token ids")
    arguments = parser.parse_args(argv)
    if arguments.out.exists():
        sys.exit(f"make_checkpoint: {arguments.out} exists already: remove it or choose another")
    text = text_config(arguments)
    tensors = dict(make_tensors(text, arguments))
    if not 1 <= arguments.shards <= len(tensors):
        sys.exit(f"make_checkpoint: --shards must be 1 to {len(tensors)}; got {arguments.shards}")
    config = styled(text, arguments.style)
    if arguments.nested:
        config = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
                  "text_config": config, "vision_config": {"model_type": "siglip_vision_model"}}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp(dir=arguments.out.parent, prefix=".checkpoint-"))
    try:
        (folder / "config.json").write_text(json.dumps(config, indent=1))
        write_weights(folder, tensors, arguments.shards)
        if arguments.tokenizer:
            shutil.copy(arguments.tokenizer / "tokenizer.model", folder)
        folder.chmod(0o755)
        folder.rename(arguments.out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    count = sum(tensor.numel() for tensor in tensors.values())
    print(f"{arguments.out}: {count:,} weights in {arguments.shards} file(s)")


if __name__ == "__main__":
    main()
