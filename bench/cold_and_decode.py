"""Cold prefill and decoding of a whole hearth-worker, beside transformers in the same run.

    .venv/bin/python bench/cold_and_decode.py [--model DIR] [--reps 5] [--json FILE]

Prefill: the client's clock from the RPC's start to the first token, with the cache off, against one
forward pass of transformers over the same prompt. Decode: milliseconds a token after the first, at
batch 1 behind a 512-token prompt. Float32 and two threads on both sides, which take turns.
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

DECODE_TOKENS = 32


def random_prompt(tokens, vocab):
    return [2] + torch.randint(1000, vocab, (tokens - 1,)).tolist()


def measure(args):
    torch.manual_seed(2)
    vocab = json.loads((pathlib.Path(args.model) / "config.json").read_text())["vocab_size"]
    peer = Transformers(args.model)
    rows = {}
    with tempfile.TemporaryDirectory() as work, Cluster(args.bin, work) as cluster:
        worker = cluster.worker(args.model, "none", "--dtype", "float32")

        def hearth(ids, count):
            time.sleep(QUIET_S)
            out = cluster.generate(worker.address, ids, "--cache", "off", max_new_tokens=count)
            time.sleep(QUIET_S)
            return out

        hearth(random_prompt(64, vocab), 2)
        peer.prefill(random_prompt(64, vocab))
        for tokens in (512, 2048):
            ours, theirs = [], []
            for _ in range(args.reps):
                prompt = random_prompt(tokens, vocab)
                out = hearth(prompt, 1)
                elapsed_ms, token, _ = peer.prefill(prompt)
                assert out["token_ids"][0] == token, (out["token_ids"], token)
                ours.append(out["ttft_ms"])
                theirs.append(elapsed_ms)
            rows[f"cold prefill {tokens}"] = (ours, theirs)
        ours, theirs = [], []
        for _ in range(args.reps):
            prompt = random_prompt(512, vocab)
            out = hearth(prompt, DECODE_TOKENS + 1)
            _, token, cache = peer.prefill(prompt)
            elapsed_ms, _ = peer.decode(cache, token, DECODE_TOKENS)
            ours.append((out["total_ms"] - out["ttft_ms"]) / DECODE_TOKENS)
            theirs.append(elapsed_ms)
        rows["decode, a token"] = (ours, theirs)
    return rows


def main():
    parser = figures.flags(__doc__)
    parser.add_argument("--reps", type=int, default=5)
    args = parser.parse_args()
    print(f"{'milliseconds':20}{'hearth best':>13}{'median':>9}{'transformers best':>19}"
          f"{'median':>9}   times as fast (best, median)")
    result = {}
    for name, (ours, theirs) in measure(args).items():
        best = min(theirs) / min(ours)
        median = statistics.median(theirs) / statistics.median(ours)
        print(f"{name:20}{min(ours):13.1f}{statistics.median(ours):9.1f}{min(theirs):19.1f}"
              f"{statistics.median(theirs):9.1f}   {best:.2f} x, {median:.2f} x")
        result[name] = {"hearth_ms": ours, "transformers_ms": theirs, "ratio_best": best,
                        "ratio_median": median}
    figures.write(args, result)


if __name__ == "__main__":
    main()
