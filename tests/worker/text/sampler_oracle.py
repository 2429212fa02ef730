"""Oracle: temperature, top-k and top-p keep what transformers' own logits processors keep, with the
same probabilities, and logprobs are torch's log_softmax.

Usage: sampler_oracle.py TEXT_PROBE MODEL_DIR (any tokenizer: it plays no part).
"""
import sys

import torch
from transformers.generation.logits_process import (TemperatureLogitsWarper, TopKLogitsWarper,
                                                    TopPLogitsWarper)

from text_probe_client import Probe

# Probabilities in float32 there, in double here: 262,144 roundings of 2^-24 stay below this.
TOLERANCE = 1e-5


def expected(logits, temperature, top_k, top_p):
    scores = TemperatureLogitsWarper(temperature)(None, logits[None])
    if top_k > 0:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if 0 < top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    return torch.softmax(scores[0].double(), dim=-1)


def check_filter(probe, logits, temperature, top_k, top_p):
    answer = probe.ask("filter", logits=logits.tolist(), temperature=temperature, top_k=top_k,
                       top_p=top_p)
    want = expected(logits, temperature, top_k, top_p)
    got = torch.zeros_like(want)
    weights = torch.tensor(answer["weights"], dtype=torch.double)
    got[torch.tensor(answer["ids"])] = weights / weights.sum()
    case = f"temperature {temperature}, top_k {top_k}, top_p {top_p}, {len(logits)} logits"
    kept = set(want.nonzero().flatten().tolist())
    assert set(answer["ids"]) == kept, f"{case}: other tokens kept"
    assert (got - want).abs().max() < TOLERANCE, f"{case}: other probabilities"
    return len(answer["ids"])


def check_logprobs(probe, logits):
    answer = probe.ask("logprobs", logits=logits.tolist())
    want = torch.log_softmax(logits.double(), dim=-1)
    assert answer["id"] == int(logits.argmax())
    assert abs(answer["logprob"] - float(want.max())) < TOLERANCE
    values, ids = want.topk(20)
    assert [entry[0] for entry in answer["top"]] == ids.tolist()
    for entry, value in zip(answer["top"], values.tolist()):
        assert abs(entry[1] - value) < TOLERANCE


def main():
    probe = Probe(sys.argv[1], sys.argv[2])
    torch.manual_seed(0)
    cases = kept = 0
    for spread in (0.5, 3.0, 8.0):
        for size in (40, 5000):
            logits = torch.randn(size) * spread
            check_logprobs(probe, logits)
            for temperature in (0.3, 1.0, 1.7):
                for top_k in (0, 1, 7, 30):
                    for top_p in (0, 0.1, 0.5, 0.9, 0.99, 1.0):
                        kept += check_filter(probe, logits, temperature, top_k, top_p)
                        cases += 1
    probe.close()
    print(f"{cases} filters equal, {kept / cases:.1f} tokens kept on average")


if __name__ == "__main__":
    main()
