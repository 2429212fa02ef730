"""Compares the worker's logits with those of transformers, for checkpoints that make_checkpoint.py
writes; also in bfloat16.

    checkpoint_oracle.py MODEL_PROBE
"""

import hashlib
import pathlib
import sys
import tempfile

import numpy
import torch
from transformers import Gemma3ForCausalLM

from model_oracle import GREEDY, Probe, check_prompt, their_logits

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "scripts"))
import make_checkpoint  # noqa: E402

# Each entry: arguments of make_checkpoint.py; then None, or the arguments of a flat checkpoint with
# the same weights, which transformers reads instead, because it requires a vision tower in a nested
# checkpoint.
FORMS = [
    ("--dtype float32", None),
    ("--dtype bfloat16 --style old", None),
    ("--dtype float16 --shards 3", None),
    ("--style old --set sliding_window_pattern=2 --set layer_types=lglglg --set rope_theta=5e4",
     None),
    ('--style old --set rope_scaling={"rope_type":"linear","factor":4.0}', None),
    ('--style new --set rope_scaling={"rope_type":"linear","factor":4.0} --seed 7', None),
    ("--set tie_word_embeddings=false --shards 2", None),
    ("--nested --style old --shards 4", ""),
    ("--nested --set tie_word_embeddings=false --dtype float16",
     "--set tie_word_embeddings=false --dtype float16"),
    ("--set use_cache=false", None),  # QLoRA training saves this value
    ("--set final_logit_softcapping=7.5 --set num_key_value_heads=4 --set sliding_window=600",
     None),
]


def make(folder, arguments):
    """Writes a checkpoint. Returns the error of make_checkpoint.py, or an empty string."""
    try:
        make_checkpoint.main([str(folder), *arguments.split()])
    except SystemExit as refused:
        return str(refused)
    return ""


def digest(folder):
    total = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        total.update(file.name.encode() + file.read_bytes())
    return total.hexdigest()


def random_ids(vocab, tokens):
    return torch.randint(0, vocab, (tokens,)).tolist()


def check_forms(binary, root):
    for number, (arguments, twin) in enumerate(FORMS):
        folder = root / f"form{number}"
        assert not make(folder, arguments)
        theirs = folder
        if twin is not None:
            theirs = root / f"twin{number}"
            assert not make(theirs, twin)
        model = Gemma3ForCausalLM.from_pretrained(theirs, dtype=torch.float32,
                                                  attn_implementation="eager").eval()
        probe = Probe(binary, folder)
        torch.manual_seed(number)
        for tokens in (9, 150):
            check_prompt(arguments or "defaults", probe, model,
                         random_ids(model.config.vocab_size, tokens), 64)
        probe.close()


def check_script(root):
    first, second = root / "first", root / "second"
    for folder in (first, second):
        assert not make(folder, "--nested --shards 2 --seed 3")
    assert digest(first) == digest(second), "the same arguments wrote other bytes"
    for arguments, word in (("", "exists already"), ("--set x", "NAME=VALUE"),
                            ("--style old --set layer_types=glllll", "cannot express"),
                            ("--set num_hidden_layers=3", "set layer_types"),
                            ("--shards 1000", "--shards must be 1 to 80; got 1000")):
        folder = first if word == "exists already" else root / "never"
        refused = make(folder, arguments)
        assert word in refused, (arguments, refused)
        assert not (root / "never").exists()
    left = [path.name for path in root.iterdir() if path.name.startswith(".checkpoint")]
    assert not left, left


def check_bfloat16(binary, root):
    """Compares bfloat16 logits of the worker and of transformers with float32 logits. (In bfloat16,
    two correct programs round differently.) The worker's RMS error may be at most 1.25 times that
    of transformers."""
    folder = root / "bfloat16"
    assert not make(folder, "--dtype bfloat16 --seed 5")
    exact = Gemma3ForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                              attn_implementation="eager").eval()
    rounded = Gemma3ForCausalLM.from_pretrained(folder, dtype=torch.bfloat16,
                                                attn_implementation="eager").eval()
    probe = Probe(binary, folder, "bfloat16")
    torch.manual_seed(5)
    ours_error, their_error = [], []
    for tokens in (5, 33, 64, 150, 300):
        ids = random_ids(exact.config.vocab_size, tokens)
        restores = [64] if tokens > 64 else []
        answer, ours = probe.answer(exact.config.vocab_size, ids=ids, chunk=64, greedy=GREEDY,
                                    restores=restores)
        all_ids = ids + answer["greedy"][:-1]
        right = their_logits(exact, all_ids)
        ours_error.append(ours - right)
        their_error.append(their_logits(rounded, all_ids) - right)
        assert answer["restored"] == [answer["sha256"]] * len(restores), \
            "different bits after a restore"
    ours_rms = float(numpy.sqrt(numpy.mean(numpy.square(ours_error))))
    their_rms = float(numpy.sqrt(numpy.mean(numpy.square(their_error))))
    print(f"bfloat16: RMS error {ours_rms:.4f}, transformers' own {their_rms:.4f}")
    assert ours_rms <= 1.25 * their_rms, "bfloat16 is less exact than transformers'"
    assert ours_rms > 0, "this was not computed in bfloat16"
    probe.close()


def main():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        check_script(root)
        check_forms(sys.argv[1], root)
        check_bfloat16(sys.argv[1], root)
    print("ok")


if __name__ == "__main__":
    main()
