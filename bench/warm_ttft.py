"""Warm time to first token of Hearth and transformers: a 2,048-token prefix and 64 new tokens.

    .venv/bin/python bench/warm_ttft.py [--model DIR] [--reps 7] [--json FILE]

Three ways to answer the same prompts, interleaved in one run, float32, two threads each, only one
at work at a time:
  transformers   copy.deepcopy of a prefilled cache, then the 64 new tokens (the usual idiom)
  hearth, store  a worker without a pool fetches from a separate hearth-store on the same host, by
                 TCP loopback and its shared memory; the client's clock, from the RPC's start to
                 the first token
  hearth, pool   the same request served from the worker's own pool of restored prefixes
Also prints the bytes of the prefix's restore point against the windowed minimum. Each
repetition uses another ending, so nothing but the prefix can be reused.
"""

import json
import pathlib
import statistics
import sys
import tempfile
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "bench/peers")]
import figures  # noqa: E402  (path set above)
from hearth_procs import Cluster  # noqa: E402  (path set above)
from transformers_peer import QUIET_S, Transformers  # noqa: E402

PREFIX_TOKENS = 2048
ENDING_TOKENS = 64


def windowed_minimum_bytes(model_dir):
    """Returns the KV bytes in float32 that a restore point at PREFIX_TOKENS needs at least."""
    config = json.loads((pathlib.Path(model_dir) / "config.json").read_text())
    config = config.get("text_config", config)
    row = 2 * config["num_key_value_heads"] * config["head_dim"] * 4
    held = [PREFIX_TOKENS if kind == "full_attention" else
            min(PREFIX_TOKENS, config["sliding_window"] - 1) for kind in config["layer_types"]]
    return row * sum(held)


def run(args):
    torch.manual_seed(1)
    vocab = json.loads((pathlib.Path(args.model) / "config.json").read_text())["vocab_size"]
    prefix = [2] + torch.randint(1000, vocab, (PREFIX_TOKENS - 1,)).tolist()
    endings = torch.randint(1000, vocab, (args.reps + 1, ENDING_TOKENS)).tolist()
    peer = Transformers(args.model)
    _, _, cache = peer.prefill(prefix)
    times = {"transformers": [], "store": [], "pool": []}
    with tempfile.TemporaryDirectory() as work, Cluster(args.bin, work) as cluster:
        store = cluster.store(pathlib.Path(work) / "data")
        flags = ["--dtype", "float32", "--arithmetic", "float32"]
        bare = cluster.worker(args.model, store.address, "--pool-bytes", "0", *flags)
        pooled = cluster.worker(args.model, store.address, *flags)
        first = cluster.generate(bare.address, prefix + endings[-1], "--breakpoint", PREFIX_TOKENS,
                                 "--wait-published")
        stats = cluster.ctl("stats", "--store", store.address)
        # `ls` ends with the oldest restore point.
        point = cluster.ctl("ls", "--store", store.address)
        assert point["tokens"] == PREFIX_TOKENS, point
        cluster.generate(pooled.address, prefix + endings[-1], "--breakpoint", PREFIX_TOKENS)
        for ending in endings[:args.reps]:
            for side, worker in (("store", bare), ("pool", pooled)):
                time.sleep(QUIET_S)
                out = cluster.generate(worker.address, prefix + ending,
                                       "--breakpoint", PREFIX_TOKENS)
                expected = {"store": ("host", "disk"), "pool": ("worker",)}[side]
                assert out["cached_tokens"] == PREFIX_TOKENS, out
                assert out["source_tier"] in expected, out
                times[side].append(out["ttft_ms"])
                if side == "store":
                    token = out["token_ids"][0]
            time.sleep(QUIET_S)
            elapsed_ms, peer_token = peer.warm(cache, ending)
            times["transformers"].append(elapsed_ms)
            assert token == peer_token, (token, peer_token)
    return times, first, stats, point["bytes"]


def report(times, first, stats, stored, args):
    best = {k: min(v) for k, v in times.items()}
    median = {k: statistics.median(v) for k, v in times.items()}
    print(f"warm TTFT, {PREFIX_TOKENS} + {ENDING_TOKENS} tokens, float32, {args.reps} repetitions")
    print(f"{'':24}{'best':>10}{'median':>10}   of transformers (best, median)")
    for name, label in (("transformers", "transformers deepcopy"), ("store", "hearth, store"),
                        ("pool", "hearth, pool")):
        ratio = (f"{best[name] / best['transformers']:8.2f}"
                 f"{median[name] / median['transformers']:8.2f}")
        print(f"{label:24}{best[name]:7.1f} ms{median[name]:7.1f} ms   {ratio}")
    above = median["store"] - median["pool"]
    print(f"store above pool: {above:.1f} ms (median)")
    print(f"cold TTFT of the first request: {first['ttft_ms']:.0f} ms")
    minimum = windowed_minimum_bytes(args.model)
    on_disk = next((t["bytes"] for t in stats["tiers"] if t["tier"] == "disk"), 0)
    print(f"stored bytes: {stored:,} for {PREFIX_TOKENS} tokens, "
          f"{stored / minimum:.3f} x the windowed minimum of {minimum:,}; "
          f"{on_disk:,} on disk with the prompt's own end and all records")
    result = {"best_ms": best, "median_ms": median, "store_above_pool_ms": above,
              "ratio_to_transformers": median["store"] / median["transformers"],
              "stored_bytes": stored, "disk_bytes": on_disk, "windowed_minimum_bytes": minimum,
              "cold_ttft_ms": first["ttft_ms"]}
    figures.write(args, result)


def main():
    parser = figures.flags(__doc__, "gemma-3-270m")  # a folder, for transformers
    parser.add_argument("--reps", type=int, default=7)
    args = parser.parse_args()
    report(*run(args), args)


if __name__ == "__main__":
    main()
