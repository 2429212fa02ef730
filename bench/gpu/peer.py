"""Measures transformers and torch alone on a device or a CPU, for comparison with Hearth.

    peer.py MODEL_DIR DEVICE DTYPE eager|compiled|layers PREFIX TURNS
    peer.py CONFIG_FILE DEVICE DTYPE products 0 TURNS  only the matrix products of a step
    peer.py - DEVICE bfloat16 rate 8192 TURNS          large matrix products

eager: DynamicCache; compiled: the static cache, with decoding under torch.compile on a device;
layers: each layer compiled, a whole step captured in one CUDA graph: the device's work without the
host's. On the CPU no graph is captured.
Prints a line of JSON for each row: {"row": ..., "unit": ..., "values": [...]}.
"""

import json
import pathlib
import sys
import time

import torch

DECODED = 16


def timed(device, work):
    if device != "cpu":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def row(name, unit, values):
    print(json.dumps({"row": name, "unit": unit, "values": values}), flush=True)


def rate(device, size, turns):
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    took = [timed(device, lambda: torch.mm(a, b)) for _ in range(turns + 1)]
    row(f"bfloat16 product of {size} x {size}", "TFLOP/s",
        [2 * size**3 / s / 1e12 for s in took[1:]])


def captured(device, work):
    """Captures `work` as a CUDA graph and returns a function that replays it. On the CPU, returns
    `work` itself."""
    if device == "cpu":
        return work
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # compile the kernels, and let libraries allocate their workspaces
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


@torch.inference_mode()
def products(file, device, dtype, turns):
    config = json.loads(pathlib.Path(file).read_text())
    config = config.get("text_config", config)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    head = config["head_dim"]
    layer = [(hidden, (heads + 2 * kv) * head), (heads * head, hidden), (hidden, 2 * inner),
             (inner, hidden)]
    shapes = layer * config["num_hidden_layers"] + [(hidden, config["vocab_size"])]
    options = {"dtype": getattr(torch, dtype), "device": device}
    weights = [torch.randn(outputs, inputs, **options).t() for inputs, outputs in shapes]
    for rows in (1, 8, 32):
        inputs = {size: torch.randn(rows, size, **options) for size, _ in shapes}
        step = captured(device, lambda: [torch.mm(inputs[w.shape[0]], w) for w in weights])
        row(f"products of a step of {rows} rows, {dtype}", "ms",
            [timed(device, step) * 1e3 for _ in range(turns + 1)][1:])


class FixedKv:
    """Keys and values of one layer for a fixed number of tokens. Each decoding step overwrites the
    last token."""

    def __init__(self, config, rows, length, like):
        shape = rows, config.num_key_value_heads, length, config.head_dim
        self.keys, self.values = (torch.randn(shape, dtype=like.dtype, device=like.device)
                                  for _ in range(2))

    def update(self, keys, values, *_):
        self.keys[:, :, -1:], self.values[:, :, -1:] = keys, values
        return self.keys, self.values


@torch.inference_mode()
def layers(model_dir, device, dtype, prefix, turns):
    from transformers import Gemma3ForCausalLM
    model = Gemma3ForCausalLM.from_pretrained(model_dir, dtype=getattr(torch, dtype)).to(device)
    config, text = model.config, model.eval().model
    for layer in text.layers:
        # Same index in all layers, so that one compilation serves all.
        layer.self_attn.layer_idx = 0
        layer.compile(dynamic=False)

    def step(token, at, kvs):
        hidden = text.embed_tokens(token)
        turned = {kind: text.rotary_emb(hidden, at, kind) for kind in set(config.layer_types)}
        for layer, kind, kv in zip(text.layers, config.layer_types, kvs):
            hidden = layer(hidden, position_embeddings=turned[kind], position_ids=at,
                           past_key_values=kv)
        return model.lm_head(text.norm(hidden))

    for rows in (1, 8, 32):
        kvs = [FixedKv(config, rows, prefix if kind == "full_attention"
                       else min(prefix, config.sliding_window), text.norm.weight)
               for kind in config.layer_types]
        token, at = (torch.full((rows, 1), n, device=device) for n in (7, prefix - 1))
        run = captured(device, lambda: step(token, at, kvs))
        row(f"compiled layers: a step of {rows} sequences, {prefix} tokens each, {dtype}", "ms",
            [timed(device, run) * 1e3 for _ in range(turns + 1)][1:])


@torch.inference_mode()
def generations(model_dir, device, dtype, mode, prefix, turns):
    from transformers import Gemma3ForCausalLM
    model = Gemma3ForCausalLM.from_pretrained(model_dir, dtype=getattr(torch, dtype)).to(device)
    model.eval()
    options = {"cache_implementation": "static"} if mode == "compiled" else {}

    def generate(ids, count):
        model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0,
                       min_new_tokens=count, max_new_tokens=count, **options)

    for sequences in (1, 8, 32):
        ids = torch.randint(3, model.config.vocab_size, (sequences, prefix), device=device)
        generate(ids, DECODED + 1)  # compiles
        first = [timed(device, lambda: generate(ids, 1)) for _ in range(turns + 1)][1:]
        if sequences == 1:
            row(f"prefill of {prefix} tokens", "ms", [s * 1e3 for s in first])
        least = min(first)
        took = [timed(device, lambda: generate(ids, DECODED + 1)) for _ in range(turns)]
        row(f"a token of {sequences} sequences", "ms",
            [(s - least) * 1e3 / (DECODED * sequences) for s in took])


def main():
    model_dir, device, dtype, mode, size, turns = sys.argv[1:]
    if mode == "rate":
        rate(device, int(size), int(turns))
    elif mode == "products":
        products(model_dir, device, dtype, int(turns))
    elif mode == "layers":
        layers(model_dir, device, dtype, int(size), int(turns))
    else:
        generations(model_dir, device, dtype, mode, int(size), int(turns))


if __name__ == "__main__":
    main()
