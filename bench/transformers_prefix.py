"""transformers with PrefixCache: the first token after a prefix of 2,048 tokens that a store has.

usage: .venv/bin/python bench/transformers_prefix.py [--endings N]

Each row is a process of its own that loads Gemma 3 270M in float32, runs it once on a few tokens,
and is then timed: `cold` computes prefix and ending; `store` restores the prefix by gRPC from a
store in RAM and computes the ending; `torch.load` reads the same cache, as torch.save wrote it.
scripts/python_package.sh must have built the package. Ends with 1 where an answer differs:
other greedy tokens, or logits further apart than 5e-5.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
sys.path.insert(0, str(ROOT / "build" / "python"))
MODEL = ROOT / "models" / "gemma-3-270m"
PREFIX_TOKENS = 2048
NEW_TOKENS = 8
TOLERANCE = 5e-5


def ids_of(ending):
    """Returns the token ids of (prefix, ending). All endings have the same prefix."""
    prefix = [2] + [1000 + (7919 * i) % 200000 for i in range(PREFIX_TOKENS - 1)]
    return prefix, [500 + 31 * ending + i for i in range(8)]


def one_process(mode, ending, address, file):
    import torch
    import transformers
    from hearth_cache.transformers import PrefixCache
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    prefix, rest = ids_of(ending)
    with torch.inference_mode():
        model(torch.tensor([[2, 5, 7]]))
    if mode == "keep":
        with PrefixCache(model, address) as prefixes:
            torch.save(prefixes.prefill(prefix), file)
            point, = prefixes._store.list()
        return {"bytes": point.bytes, "file_bytes": pathlib.Path(file).stat().st_size,
                "needed": needed_bytes(model.config)}
    prefixes = PrefixCache(model, address) if mode == "store" else None
    begin = time.perf_counter()
    if mode == "store":
        cache = prefixes.load(prefix + rest)
    elif mode == "torch.load":
        cache = torch.load(file, weights_only=False)
    else:
        cache = transformers.DynamicCache(config=model.config)
    loaded = time.perf_counter()
    logits, tokens, ids = None, [], (prefix + rest)[cache.get_seq_length():]
    restored = cache.get_seq_length()
    with torch.inference_mode():
        for _ in range(NEW_TOKENS):
            row = model(torch.tensor([ids]), past_key_values=cache, logits_to_keep=1).logits[0, -1]
            if logits is None:
                first, logits = time.perf_counter(), row.tolist()
            ids = [int(row.argmax())]
            tokens += ids
    return {"restored": restored, "load_ms": 1e3 * (loaded - begin),
            "first_ms": 1e3 * (first - begin), "tokens": tokens, "logits": logits}


def needed_bytes(config):
    """Returns the KV bytes that a restore must read: all tokens of full-attention layers, and the
    last window - 1 tokens of sliding layers."""
    rows = sum(PREFIX_TOKENS if kind == "full_attention" else config.sliding_window - 1
               for kind in config.layer_types)
    return rows * 2 * config.num_key_value_heads * config.head_dim * 4


def run(mode, ending, address, file):
    done = subprocess.run([sys.executable, "-B", __file__, "--mode", mode, "--ending", str(ending),
                           "--store", address, "--file", str(file)],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{mode} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(endings):
    from hearth_procs import Cluster
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, \
            Cluster(ROOT / "build" / "bin", pathlib.Path(folder, "logs")) as cluster:
        address, file = cluster.store(pathlib.Path(folder, "data")).address, f"{folder}/cache.pt"
        kept = run("keep", 0, address, file)
        print(f"stored {kept['bytes'] / 1e6:.2f} MB, {kept['bytes'] / kept['needed']:.3f} x the "
              f"windowed minimum; torch.save {kept['file_bytes'] / 1e6:.2f} MB")
        print("ending   mode        restored    load ms   first ms   times sooner   logits differ")
        for ending in range(endings):
            cold = None
            for mode in ("cold", "store", "torch.load"):
                row = run(mode, ending, address, file)
                cold = cold or row
                apart = max(abs(a - b) for a, b in zip(row["logits"], cold["logits"], strict=True))
                wrong += apart > TOLERANCE or row["tokens"] != cold["tokens"]
                print(f"{ending:6}   {mode:10}  {row['restored']:8}  {row['load_ms']:9.1f}  "
                      f"{row['first_ms']:9.1f}  {cold['first_ms'] / row['first_ms']:13.1f}  "
                      f"{apart:14.2e}", flush=True)
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--endings", type=int, default=5)
    parser.add_argument("--mode", help=argparse.SUPPRESS)
    parser.add_argument("--ending", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.mode is None:
        return measure(args.endings)
    print(json.dumps(one_process(args.mode, args.ending, args.store, args.file)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
