"""Compares the worker's logits with LoRA adapters with those of the library peft.

    adapter_oracle.py INVARIANT_PROBE tiny            adapters of several kinds on small models
    adapter_oracle.py INVARIANT_PROBE real MODEL_DIR  one adapter on the real 270M

The tolerances are those of model_oracle.py. The probe also checks that the bits are equal: with
other step sizes, on each instruction set, and in steps with texts without an adapter.
"""

import tempfile

import torch
from peft import LoraConfig, get_peft_model
from transformers import Gemma3ForCausalLM

from model_oracle import GREEDY, Probe, check_prompt, compare, their_logits, run, tiny_config

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS = [
    ("all projections", dict(r=4, lora_alpha=8, target_modules=ALL)),
    ("queries and values, rank 1", dict(r=1, lora_alpha=3, target_modules=["q_proj", "v_proj"])),
    ("feed-forward, rsLoRA", dict(r=9, lora_alpha=5, use_rslora=True,
                                  target_modules=["gate_proj", "down_proj"])),
    ("keys of one layer, bfloat16", dict(r=16, lora_alpha=16, target_modules=["k_proj"],
                                         layers_to_transform=[1])),
]


def adapted(model, options, seed, spread):
    """Returns the model with an adapter of random weights; those that peft sets have no effect."""
    torch.manual_seed(seed)
    peft_model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **options)).eval()
    with torch.no_grad():
        for name, parameter in peft_model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, spread)
    return peft_model


def check_adapter(name, probe, model, ids, chunk, folder):
    boundaries = list(range(chunk, len(ids), chunk))
    answer, ours = probe.answer(model.config.vocab_size, ids=ids, chunk=chunk, greedy=GREEDY,
                                restores=boundaries[-3:], adapter=folder)
    difference = compare(name, ours, their_logits(model, ids + answer["greedy"][:-1]))
    for warm in answer["restored"]:
        assert warm == answer["sha256"], f"{name}: different bits after a restore"
    print(f"{name:46} {len(ids):5} tokens  {difference:.1e}", flush=True)
    return ours


def run_tiny(binary):
    for number, (name, options) in enumerate(ADAPTERS):
        torch.manual_seed(number)
        model = Gemma3ForCausalLM(tiny_config({})).float().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 0.2 if parameter.dim() == 1 else 0.1)
        with tempfile.TemporaryDirectory() as base, tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(base)
            ids = torch.randint(0, 300, (150,)).tolist()
            probe = Probe(binary, base)
            check_prompt("without an adapter", probe, model, ids, 32)
            peft_model = adapted(model, options, number, 0.2)
            if "bfloat16" in name:
                for key, parameter in peft_model.named_parameters():
                    if "lora_" in key:
                        parameter.data = parameter.data.bfloat16()
            peft_model.save_pretrained(folder)
            peft_model.float()
            ours = check_adapter(name, probe, peft_model, ids, 32, folder)
            must_matter(name, ours, peft_model, ids)
            probe.close()


def must_matter(name, ours, peft_model, ids):
    """Fails unless the adapter changes the logits; otherwise the comparison proves nothing."""
    with peft_model.disable_adapter():
        base = their_logits(peft_model, ids, 1)
    assert abs(ours[0] - base[0]).max() > 0.01, f"{name} changes no logits"


def run_real(binary, model_dir):
    model = Gemma3ForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    probe = Probe(binary, model_dir)
    peft_model = adapted(model, dict(r=8, lora_alpha=16, target_modules=ALL), 1, 0.02)
    ids = [2] + torch.randint(1000, 200000, (99,)).tolist()
    with tempfile.TemporaryDirectory() as folder:
        peft_model.save_pretrained(folder)
        ours = check_adapter("270M, all projections", probe, peft_model, ids, 128, folder)
        must_matter("270M", ours, peft_model, ids)
    probe.close()


if __name__ == "__main__":
    run(run_tiny, run_real)
