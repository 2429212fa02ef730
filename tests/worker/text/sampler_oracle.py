"""Oracle: temperature, top-k, top-p and min-p keep the same tokens as transformers' logits
processors, with the same probabilities; biases, penalties and bans give the processors' logits bit
for bit; logprobs equal torch's log_softmax.

Usage: sampler_oracle.py TEXT_PROBE MODEL_DIR (any tokenizer; it is not used).
"""
import sys

import torch
from transformers.generation.logits_process import (MinNewTokensLengthLogitsProcessor,
                                                    MinPLogitsWarper, NoBadWordsLogitsProcessor,
                                                    RepetitionPenaltyLogitsProcessor,
                                                    SequenceBiasLogitsProcessor,
                                                    TemperatureLogitsWarper, TopKLogitsWarper,
                                                    TopPLogitsWarper)

from text_probe_client import Probe

# transformers adds weights in float32, Hearth in double. The error of 262,144 float32 roundings
# (2^-24 each) stays below this.
TOLERANCE = 1e-5


def expected(logits, temperature, top_k, top_p, min_p):
    scores = TemperatureLogitsWarper(temperature)(None, logits[None])
    if top_k > 0:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if 0 < top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    if min_p > 0:
        scores = MinPLogitsWarper(min_p)(None, scores)
    return torch.softmax(scores[0].double(), dim=-1)


def check_filter(probe, logits, temperature, top_k, top_p, min_p):
    answer = probe.ask("filter", logits=logits.tolist(), temperature=temperature, top_k=top_k,
                       top_p=top_p, min_p=min_p)
    want = expected(logits, temperature, top_k, top_p, min_p)
    got = torch.zeros_like(want)
    weights = torch.tensor(answer["weights"], dtype=torch.double)
    got[torch.tensor(answer["ids"])] = weights / weights.sum()
    case = (f"temperature {temperature}, top_k {top_k}, top_p {top_p}, min_p {min_p}, "
            f"{len(logits)} logits")
    kept = set(want.nonzero().flatten().tolist())
    assert set(answer["ids"]) == kept, f"{case}: other tokens kept"
    assert (got - want).abs().max() < TOLERANCE, f"{case}: other probabilities"
    return len(answer["ids"])


def check_rules(probe, logits, generator):
    """Applies the rules in transformers' order. transformers has no presence and frequency penalty:
    these follow the documentation of OpenAI's API."""
    def draw(count):
        return torch.randint(len(logits), (count,), generator=generator).tolist()
    prompt, answer = draw(30), draw(12) * 2
    biases = {token: float(bias) for token, bias in
              zip(draw(9), torch.randn(9, generator=generator) * 10)}
    bad, eos = draw(5), draw(2)
    for penalty in (1.0, 0.7, 1.4):
        for presence, frequency in ((0.0, 0.0), (0.5, 0.25), (-2.0, 1.5)):
            for min_tokens in (0, len(answer), len(answer) + 1):
                scores = SequenceBiasLogitsProcessor({(t,): b for t, b in biases.items()})(
                    torch.tensor([prompt + answer]), logits[None].clone())
                ids = torch.tensor([prompt + answer])
                if penalty != 1:
                    scores = RepetitionPenaltyLogitsProcessor(penalty)(ids, scores)
                counts = torch.bincount(torch.tensor(answer), minlength=len(logits))
                scores = scores - frequency * counts - presence * (counts > 0)
                scores = NoBadWordsLogitsProcessor([[token] for token in bad])(ids, scores)
                scores = MinNewTokensLengthLogitsProcessor(len(prompt), min_tokens, eos)(ids,
                                                                                         scores)
                got = probe.ask("rules", logits=logits.tolist(), prompt=prompt, answer=answer,
                                logit_bias=list(biases.items()), repetition_penalty=penalty,
                                presence_penalty=presence, frequency_penalty=frequency,
                                bad_ids=bad, min_tokens=min_tokens, eos=eos)
                want = torch.where(scores[0].isinf(), torch.finfo(torch.float32).min, scores[0])
                assert got["restored"]
                assert torch.equal(torch.tensor(got["logits"], dtype=torch.float32), want)


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
    generator = torch.Generator().manual_seed(1)
    cases = kept = 0
    for spread in (0.5, 3.0, 8.0):
        for size in (40, 5000):
            logits = torch.randn(size) * spread
            check_logprobs(probe, logits)
            check_rules(probe, logits, generator)
            for temperature in (0.3, 1.0, 1.7):
                for top_k in (0, 1, 7, 30):
                    for top_p in (0, 0.1, 0.5, 0.9, 0.99, 1.0):
                        for min_p in (0, 0.02, 0.3) if temperature == 1.7 else (0,):
                            kept += check_filter(probe, logits, temperature, top_k, top_p, min_p)
                            cases += 1
    probe.close()
    print(f"{cases} filters equal, {kept / cases:.1f} tokens kept on average")


if __name__ == "__main__":
    main()
