"""Measures the quality of transformers' bfloat16 as quality_bench measures Hearth's models:
perplexity on texts, mean divergence (KL) from transformers' float32, and how often the most likely
token is the same.

    python bench/transformers_quality.py TEXT,TEXT,... MODEL_DIR
"""

import pathlib
import sys

import torch
from transformers import AutoTokenizer, Gemma3ForCausalLM

TEXT_TOKENS = 2048
BOS = 2
STEP = 64  # rows whose logits are in memory at a time


@torch.inference_mode()
def hidden_states(model, ids):
    return model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0]


@torch.inference_mode()
def log_probabilities(model, hidden):
    return torch.log_softmax(model.lm_head(hidden).double(), -1)


@torch.inference_mode()
def measure(wide, narrow, ids):
    """Prints a line for each of the two models."""
    states = [hidden_states(model, ids) for model in (wide, narrow)]
    loss, divergence, same = [0.0, 0.0], 0.0, 0
    for at in range(0, len(ids) - 1, STEP):
        rows = slice(at, min(at + STEP, len(ids) - 1))
        base, other = (log_probabilities(model, state[rows])
                       for model, state in zip((wide, narrow), states))
        following = torch.tensor(ids[rows.start + 1:rows.stop + 1])[:, None]
        for i, rows_of_model in enumerate((base, other)):
            loss[i] -= float(rows_of_model.gather(1, following).sum())
        divergence += float((base.exp() * (base - other)).sum())
        same += int((base.argmax(-1) == other.argmax(-1)).sum())
    tokens = len(ids) - 1
    for name, of_model, kl, equal in (("float32", loss[0], 0.0, tokens),
                                      ("bfloat16", loss[1], divergence, same)):
        perplexity = float(torch.tensor(of_model / tokens).exp())
        print(f"  transformers, {name:26} {tokens:5} tokens  perplexity {perplexity:9.4f}  "
              f"KL {kl / tokens:.5f}  same first choice {100 * equal / tokens:.2f} %", flush=True)


def main():
    texts, model_dir = sys.argv[1].split(","), sys.argv[2]
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    wide, narrow = (Gemma3ForCausalLM.from_pretrained(model_dir, dtype=dtype).eval()
                    for dtype in (torch.float32, torch.bfloat16))
    for text in texts:
        print(text)
        ids = tokenizer(pathlib.Path(text).read_text(encoding="utf-8"),
                        add_special_tokens=False).input_ids
        measure(wide, narrow, [BOS, *ids][:TEXT_TOKENS])


if __name__ == "__main__":
    main()
