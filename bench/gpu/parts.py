"""Two parts of a GPU kit that compare answers, each with a line of JSON for a row.

    parts.py tokens MODEL_DIR DEVICE KIT     64 greedy tokens in float32, beside transformers'
    parts.py service MODEL_DIR DEVICE KIT [CHUNK_TOKENS]
                                             two real workers, and the store between them
"""

import json
import pathlib
import random
import sys
import tempfile

PROMPT_TOKENS = (5, 100, 511, 600, 1100)
ENDING, ROUNDS = 64, 7


def row(name, unit, *values):
    print(json.dumps({"row": name, "unit": unit, "values": values}), flush=True)


def tokens(folder, device, kit):
    try:
        import transformers
    except ImportError:
        sys.exit("this Python has no transformers")
    import torch
    sys.path.insert(0, str(kit / "tests/worker/model"))
    import model_oracle
    model = transformers.Gemma3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    probe = model_oracle.Probe(kit / "bin/model_probe", folder, "float32", device)
    wrong = worst = other = 0
    draw, vocabulary = random.Random(7), model.config.vocab_size
    for count in PROMPT_TOKENS:
        ids = [draw.randrange(3, vocabulary) for _ in range(count)]
        answer, ours = probe.answer(vocabulary, ids=ids, greedy=model_oracle.GREEDY, chunk=128,
                                    restores=[b for b in (128, 512) if b < count])
        theirs = model_oracle.their_logits(model, ids + answer["greedy"][:-1])
        worst = max(worst, float(abs(ours - theirs).max()))
        wrong += int((ours.argmax(-1) != theirs.argmax(-1)).sum())
        other += sum(digest != answer["sha256"] for digest in answer["restored"])
    probe.close()
    row("greedy tokens that differ from transformers'", "tokens", wrong)
    row("largest difference of a logit", "", worst)
    row("other logits after a restore", "restores", other)


def service(folder, device, kit, chunk="128"):
    sys.path.insert(0, str(kit / "scripts"))
    from hearth_procs import Cluster
    draw = random.Random(11)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    prefix = 2048 if device == "cuda" else 1024
    flags = ["--device", device, "--load", "always", "--pool-bytes", "0",
             "--chunk-tokens", chunk]
    gpu = ["--gpu-bytes", "1GiB"] if device == "cuda" else []
    cut = ["--breakpoint", prefix]

    def ids(count):
        return [draw.randrange(3, vocabulary) for _ in range(count)]

    with tempfile.TemporaryDirectory() as work, \
            Cluster(kit / "bin", pathlib.Path(work) / "logs") as cluster:
        store = cluster.store(pathlib.Path(work) / "data", *gpu)
        workers = [cluster.worker(folder, store.address, *flags) for _ in range(2)]
        for worker in workers:
            cluster.generate(worker.address, ids(ENDING), "--cache", "off")
        shared = ids(prefix)
        cluster.generate(workers[0].address, shared + ids(ENDING), *cut, "--wait-published")
        taken, other = {}, 0
        for _ in range(ROUNDS):
            prompt, answers = shared + ids(ENDING), []
            for mode in ("off", "read"):
                got = cluster.generate(workers[1].address, prompt, "--cache", mode, *cut)
                answers.append(got["first_logits_sha256"])
                kind = f"restored, {got['source_tier']}" if got["cached_tokens"] else "computed"
                if mode == "read" and not got["cached_tokens"]:
                    sys.exit("nothing was restored: the store's answer came too late, or was none")
                taken.setdefault(kind, []).append(got["ttft_ms"])
            other += answers[0] != answers[1]
        for kind, times in taken.items():
            row(f"first token behind {prefix} tokens, chunks of {chunk}, {kind}", "ms", *times)
        row("other logits after a restore", "requests", other)


if __name__ == "__main__":
    {"tokens": tokens, "service": service}[sys.argv[1]](
        pathlib.Path(sys.argv[2]), sys.argv[3], pathlib.Path(sys.argv[4]), *sys.argv[5:])
