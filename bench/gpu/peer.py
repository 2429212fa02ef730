"""transformers and torch by themselves on a device or a CPU: what Hearth's figures stand beside.

    peer.py MODEL_DIR DEVICE DTYPE eager|compiled PREFIX TURNS
    peer.py - DEVICE bfloat16 rate 8192 TURNS          matrix products

eager: DynamicCache; compiled: the static cache, whose decoding transformers hands to torch.compile
on a device. Prints a line of JSON for each: {"row": ..., "unit": ..., "values": [...]}.
"""

import json
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
    else:
        generations(model_dir, device, dtype, mode, int(size), int(turns))


if __name__ == "__main__":
    main()
