"""Compares the worker's logits with those of the library transformers.

    model_oracle.py MODEL_PROBE tiny            random checkpoints of small, odd geometries
    model_oracle.py MODEL_PROBE few             some of these, as different as possible
    model_oracle.py MODEL_PROBE real MODEL_DIR  Gemma 3 270M, 20 prompts of 5 to 3,000 tokens

The last position's logits must agree within 1e-4. 64 greedy tokens must be equal, unless
transformers' two best logits differ by at most 1e-4. After the KV is copied through slices at a
chunk boundary, the logits must have the same bits.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

BAR = 1e-4
GREEDY = 64


class Probe:
    def __init__(self, binary, model_dir, dtype="float32", device=""):
        self.process = subprocess.Popen([binary, str(model_dir), dtype, *filter(None, [device])],
                                        stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        ready = self.process.stdout.readline()
        assert ready, f"{binary} ended before it was ready"
        self.notes = json.loads(ready)["notes"]
        self.logits_file = tempfile.NamedTemporaryFile(suffix=".f32")

    def ask(self, **question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the probe ended at {str(question)[:200]}"
        return json.loads(answer)

    def answer(self, vocab, **question):
        """Returns the answer and its logits: of the prompt's last and each decoded position."""
        answer = self.ask(logits=self.logits_file.name, **question)
        logits = numpy.fromfile(self.logits_file.name, dtype=numpy.float32)
        return answer, logits.reshape(-1, vocab)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


@torch.inference_mode()
def their_logits(model, ids, positions=GREEDY):
    """Returns transformers' logits of the last `positions` of `ids`, in one pass.

    transformers' Gemma 3 does not pass attn_logit_softcapping of its configuration to its attention
    function, so this function passes it as `softcap`.
    """
    extra = {}
    if model.config.attn_logit_softcapping:
        extra["softcap"] = model.config.attn_logit_softcapping
    out = model(torch.tensor([ids]), use_cache=False, logits_to_keep=positions, **extra)
    return out.logits[0].float().numpy()


def compare(name, ours, theirs):
    """Returns the largest difference of the prompt's logits. Fails if it exceeds BAR, or if a
    greedy token differs although transformers' two best logits differ by more than BAR."""
    difference = float(numpy.abs(ours[0] - theirs[0]).max())
    assert difference <= BAR, f"{name}: logits differ by {difference:.2e}, the bar is {BAR}"
    for i, (row, their_row) in enumerate(zip(ours, theirs)):
        if row.argmax() == their_row.argmax():
            continue
        second, first = numpy.sort(their_row)[-2:]
        assert first - second <= BAR, f"{name}: greedy token {i} is {row.argmax()}, not " \
                                      f"{their_row.argmax()}, with a lead of {first - second:.2e}"
    return difference


def check_prompt(name, probe, model, ids, chunk, cuts=(), restores=6):
    """Compares the worker's 64 greedy tokens with those of transformers, which gets the prompt and
    the worker's earlier tokens as input for each token. Also restores the KV at each of the last
    boundaries and compares the bits."""
    boundaries = sorted({*range(chunk, len(ids), chunk), *(c for c in cuts if c < len(ids))})
    answer, ours = probe.answer(model.config.vocab_size, ids=ids, chunk=chunk, cuts=list(cuts),
                                greedy=GREEDY, restores=boundaries[-restores:])
    difference = compare(name, ours, their_logits(model, ids + answer["greedy"][:-1]))
    assert len(answer["restored"]) == len(boundaries[-restores:]), f"{name}: not all restored"
    for boundary, warm in zip(boundaries[-restores:], answer["restored"]):
        assert warm == answer["sha256"], f"{name}: different bits after a restore at {boundary}"
    print(f"{name:46} {len(ids):5} tokens  {difference:.1e}  {len(boundaries)} boundaries",
          flush=True)


# The tested geometries: a name, then the fields that differ from BASE.
BASE = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, vocab_size=300, sliding_window=24,
            query_pre_attn_scalar=16, max_position_embeddings=2048, layer_types="lglg")
LINEAR = dict(rope=dict(rope_type="linear", factor=8.0))
GEOMETRIES = [
    ("window 8, below the chunk", dict(sliding_window=8)),
    ("window 600, above every prompt", dict(sliding_window=600)),
    ("only local layers", dict(layer_types="llll")),
    ("only global layers", dict(layer_types="gggg")),
    ("irregular layers, one KV head", dict(layer_types="gllgl", num_hidden_layers=5,
                                           num_key_value_heads=1)),
    ("8 KV heads", dict(num_attention_heads=8, num_key_value_heads=8)),
    ("odd head size and scalar", dict(head_dim=24, query_pre_attn_scalar=20)),
    ("softcaps", dict(attn_logit_softcapping=3.0, final_logit_softcapping=5.0)),
    ("linear rope scaling", LINEAR),
    ("untied head, one global layer", dict(tie_word_embeddings=False, layer_types="lllg")),
    ("yarn", dict(rope=dict(rope_type="yarn", factor=4.0,
                            original_max_position_embeddings=64))),
    ("yarn, not truncated, mscale", dict(truncate=False, rope=dict(
        rope_type="yarn", factor=8.0, original_max_position_embeddings=256, mscale=0.7,
        mscale_all_dim=0.3, beta_fast=16, beta_slow=2))),
]


def tiny_config(changes):
    fields = {**BASE, **changes}
    rope = fields.pop("rope", {"rope_type": "default"})
    beside = {"truncate": fields.pop("truncate")} if "truncate" in fields else {}
    kinds = {"l": "sliding_attention", "g": "full_attention"}
    fields["layer_types"] = [kinds[letter] for letter in fields["layer_types"]]
    fields["rope_parameters"] = {
        **beside, "full_attention": {"rope_theta": 1000000.0, **rope},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    return Gemma3TextConfig(**fields, attn_implementation="eager", pad_token_id=0)


def run_tiny(binary, numbers=range(len(GEOMETRIES))):
    for number in numbers:
        name, changes = GEOMETRIES[number]
        torch.manual_seed(number)
        model = Gemma3ForCausalLM(tiny_config(changes)).float().eval()
        with torch.no_grad():
            for parameter in model.parameters():  # logits of order 1, norms away from 1
                parameter.normal_(0, 0.2 if parameter.dim() == 1 else 0.1)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder, max_shard_size="40KB" if number % 2 else "1GB")
            probe = Probe(binary, folder)
            for tokens, chunk, cuts in ((5, 16, ()), (70, 16, (21, 40)), (300, 128, (100,))):
                ids = torch.randint(0, 300, (tokens,)).tolist()
                check_prompt(name, probe, model, ids, chunk, cuts)
            if number == 0:
                must_notice(probe, model, ids)
            probe.close()


def must_notice(probe, model, ids):
    """Checks that the comparison fails if one norm of the transformers model is 1 % larger."""
    with torch.no_grad():
        model.model.layers[1].self_attn.k_norm.weight.mul_(1.01)
    answer, ours = probe.answer(model.config.vocab_size, ids=ids, greedy=GREEDY)
    theirs = their_logits(model, ids + answer["greedy"][:-1])
    try:
        compare("changed weights", ours, theirs)
    except AssertionError:
        return
    raise AssertionError("the comparison passed although a norm was 1 % larger")


def run_real(binary, model_dir):
    import sentencepiece
    text = (pathlib.Path(__file__).parents[3] / "scripts/data/demo_text.txt").read_text()
    words = sentencepiece.SentencePieceProcessor(
        model_file=str(pathlib.Path(model_dir) / "tokenizer.model")).encode(text)
    model = Gemma3ForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    probe = Probe(binary, model_dir)
    lengths = [5, 9, 17, 33, 64, 100, 127, 128, 129, 200, 256, 300, 400, 511, 513, 600, 800, 1100,
               1700, 3000]
    # Use real text: on 600 random ids, the float32 logits of transformers differ from its float64
    # logits by 1.2e-4 (ours by 0.7e-4), so a bar of 1e-4 would pass or fail by chance.
    for number, tokens in enumerate(lengths):
        ids = (words[7 * number:] + words)[:tokens - 1]
        cuts = (tokens // 3,) if tokens > 60 else ()
        check_prompt("270M", probe, model, [2] + ids, 128, cuts, restores=2)
    probe.close()


def run(tiny, real, few=None):
    """Runs the command line shared by the oracles: BINARY tiny|few|real [MODEL_DIR]."""
    binary, kind = sys.argv[1:3]
    if kind == "real":
        real(binary, sys.argv[3])
    else:
        {"tiny": tiny, "few": few}[kind](binary)
    print("ok")


if __name__ == "__main__":
    # The geometries of `few`: a small window, one KV head, softcaps, RoPE scalings, an untied head.
    run(run_tiny, run_real, few=lambda binary: run_tiny(binary, (0, 4, *range(7, 12))))
