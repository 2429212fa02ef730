"""The parts of a GPU kit that compare answers; each prints a line of JSON for each row.

    parts.py tokens MODEL_DIR DEVICE KIT LOGS
                                             compares 64 greedy float32 tokens with transformers
    parts.py workers MODEL_DIR DEVICE KIT LOGS [WORKER_FLAG...]
                                             a device worker (emulated without a device) and a CPU
                                             worker share one store
    parts.py service MODEL_DIR DEVICE KIT LOGS [CHUNK_TOKENS [gpu|host [WORKER_FLAG...]]]
                                             three workers share one store, which restores from
                                             its gpu tier or from host memory
LOGS: folder for the logs of the store and the workers. If a part cannot run, it prints the reason
and exits with 77.
"""

import json
import pathlib
import random
import statistics
import sys
import tempfile

PROMPT_TOKENS = (5, 100, 511, 600, 1100)
ENDING, ROUNDS = 64, 7
START_SECONDS = 45  # less than the limit of each part, so that the part says why nothing started


def row(name, unit, *values):
    print(json.dumps({"row": name, "unit": unit, "values": values}), flush=True)


def not_run(why):
    print(why)
    sys.exit(77)


def tokens(folder, device, kit, unused_logs):
    try:
        import transformers
    except ImportError:
        not_run("this Python has no transformers")
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


def cluster_of(kit, logs):
    sys.path.insert(0, str(kit / "scripts"))
    import hearth_procs
    hearth_procs.START_TIMEOUT_S = START_SECONDS
    return hearth_procs.Cluster(kit / "bin", logs)


def worker_of(cluster, folder, device, store, *flags):
    """Starts a worker. If it does not start, ends this program: with 77 on a machine without a
    device and for a worker without device support, else with 1, because the device may compute
    different bits."""
    from hearth_procs import ProcessFailed
    try:
        return cluster.worker(folder, store.address, "--load", "always", *flags)
    except ProcessFailed as failed:
        first, *log = failed.args[0].splitlines()
        why = f"{first} {log[-1].strip()}" if log else first
        if device == "cpu" or "this worker was built without it" in failed.args[0]:
            not_run(why)
        sys.exit(why)


def ids_of(folder, seed):
    draw = random.Random(seed)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    return lambda count: [draw.randrange(3, vocabulary) for _ in range(count)]


def workers(folder, device, kit, logs, *more):
    ids = ids_of(folder, 13)
    path = ["--device", "emulated"] if device == "cpu" else \
        ["--device", device, "--exactness", "invariant"]
    prefix, count = (1100, ENDING) if device != "cpu" else (200, 4)
    with tempfile.TemporaryDirectory() as work, cluster_of(kit, logs) as cluster:
        store = cluster.store(pathlib.Path(work) / "data")
        both = [worker_of(cluster, folder, device, store, "--pool-bytes", "0", *more, *flags)
                for flags in (path, ())]
        for publisher, reader, what in ((1, 0, "the device restores a CPU worker's"),
                                        (0, 1, "a CPU worker restores the device's")):
            shared = ids(prefix)
            prompt = shared + ids(9)
            cluster.generate(both[publisher].address, shared + ids(5), "--breakpoint", prefix,
                             "--wait-published")
            restored = cluster.generate(both[reader].address, prompt, "--cache", "read",
                                        max_new_tokens=count)
            others = [cluster.generate(worker.address, prompt, "--cache", "off",
                                       max_new_tokens=count) for worker in both]
            if restored["cached_tokens"] < prefix:
                sys.exit(f"{what} prefix: {restored['cached_tokens']} of {prefix} tokens restored")
            for name in ("first_logits_sha256", "token_ids"):
                row(f"{what} prefix: {name} that differ from the CPU's", "answers",
                    sum(other[name] != restored[name] for other in others))


def service(folder, device, kit, logs, chunk="128", tier="gpu", *more):
    ids = ids_of(folder, 11)
    prefix = 2048 if device == "cuda" else 1024
    flags = ["--device", device, "--chunk-tokens", chunk, *more]
    gpu = ["--gpu-bytes", "1GiB"] if device == "cuda" and tier == "gpu" else []
    cut = ["--breakpoint", prefix]

    with tempfile.TemporaryDirectory() as work, cluster_of(kit, logs) as cluster:
        store = cluster.store(pathlib.Path(work) / "data", *gpu)
        pools = ("0", "0", "1GiB")
        workers = [worker_of(cluster, folder, device, store, "--pool-bytes", pool, *flags)
                   for pool in pools]
        for worker in workers:
            cluster.generate(worker.address, ids(ENDING), "--cache", "off")
        shared = ids(prefix)
        cluster.generate(workers[0].address, shared + ids(ENDING), *cut, "--wait-published")
        cluster.generate(workers[2].address, shared + ids(ENDING), *cut, "--cache", "read")
        taken, other = {}, 0
        for _ in range(ROUNDS):
            prompt, answers = shared + ids(ENDING), []
            for worker, mode in ((workers[1], "off"), (workers[1], "read"), (workers[2], "read")):
                got = cluster.generate(worker.address, prompt, "--cache", mode, *cut)
                answers.append(got["first_logits_sha256"])
                kind = f"restored, {got['source_tier']}" if got["cached_tokens"] else "computed"
                if mode == "read" and not got["cached_tokens"]:
                    sys.exit("nothing was restored: the store's answer was late or missing")
                taken.setdefault(kind, []).append(got["ttft_ms"])
                kv_bytes = int(got.get("kv_bytes") or 0)
            other += len(set(answers)) > 1
        for kind, times in taken.items():
            row(f"first token behind {prefix} tokens, chunks of {chunk}, {kind}", "ms", *times)
        row("other logits after a restore", "requests", other)
        print_rate(taken, tier, kv_bytes)


def print_rate(taken, tier, kv_bytes):
    """Prints the rate of a restore. A restore from the worker's pool copies nothing, so the
    difference of the medians is the restore's time. `taken`: milliseconds by kind of request."""
    loaded, pooled = (taken.get(f"restored, {of}") for of in (tier, "worker"))
    name, why = f"rate of a restore, {tier}", ""
    if not loaded or not pooled or not kv_bytes:
        why = f"needs restores from {tier} and worker; got {', '.join(taken)}, {kv_bytes} bytes"
    elif statistics.median(loaded) <= statistics.median(pooled):
        why = f"a restore took {statistics.median(loaded):.3f} ms, from the worker's pool " \
              f"{statistics.median(pooled):.3f} ms"
    if why:
        print(json.dumps({"row": name, "why": why}), flush=True)
        return
    seconds = (statistics.median(loaded) - statistics.median(pooled)) / 1e3
    row(name, "GB/s", kv_bytes / 1e9 / seconds)


if __name__ == "__main__":
    {"tokens": tokens, "workers": workers, "service": service}[sys.argv[1]](
        pathlib.Path(sys.argv[2]), sys.argv[3], *map(pathlib.Path, sys.argv[4:6]), *sys.argv[6:])
