"""Compares checkpoints of every form with transformers: as make_checkpoint.py writes them, as
transformers itself saves a multimodal model, and computed in bfloat16.

    checkpoint_oracle.py MODEL_PROBE
"""

import hashlib
import pathlib
import sys
import tempfile

import numpy
import torch
from safetensors.torch import load_file, save_file
from transformers import (Gemma3Config, Gemma3ForCausalLM, Gemma3ForConditionalGeneration,
                          SiglipVisionConfig)

from model_oracle import GREEDY, Probe, check_prompt, their_logits, tiny_config

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "scripts"))
import make_checkpoint  # noqa: E402

# Arguments, then those of the flat checkpoint of the same weights that transformers reads instead:
# its nested form needs a vision tower, and an index it finds by itself.
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
    ("--set use_cache=false", None),  # as a training with QLoRA leaves it
    ("--set final_logit_softcapping=7.5 --set num_key_value_heads=4 --set sliding_window=600",
     None),
]


def make(folder, arguments):
    """The script's error instead of a folder, or nothing."""
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
                            ("--style old --set layer_types=glllll", "cannot say"),
                            ("--set num_hidden_layers=3", "set layer_types"),
                            ("--shards 1000", "--shards 1000")):
        folder = first if word == "exists already" else root / "never"
        refused = make(folder, arguments)
        assert word in refused, (arguments, refused)
        assert not (root / "never").exists()
    left = [path.name for path in root.iterdir() if path.name.startswith(".checkpoint")]
    assert not left, left


def check_multimodal(binary, root):
    """A folder that transformers saved itself: nested config, its own prefix, a vision tower."""
    torch.manual_seed(11)
    text = tiny_config({})
    config = Gemma3Config(text_config=text.to_dict(), mm_tokens_per_image=4,
                          vision_config=SiglipVisionConfig(
                              hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                              num_attention_heads=1, image_size=28, patch_size=14).to_dict())
    config._attn_implementation = "eager"
    model = Gemma3ForConditionalGeneration(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2 if parameter.dim() == 1 else 0.1)
    folder = root / "multimodal"
    model.save_pretrained(folder)
    probe = Probe(binary, folder)
    assert any("vision tensors skipped" in note for note in probe.notes), probe.notes
    ids = random_ids(300, 90)
    with torch.inference_mode():
        theirs = model(torch.tensor([ids])).logits[0, -1].numpy()
    _, ours = probe.answer(300, ids=ids, chunk=32, greedy=1)
    difference = float(numpy.abs(ours[0] - theirs).max())
    assert difference <= 1e-4, f"multimodal: logits differ by {difference:.2e}"
    print(f"saved by transformers, multimodal: {probe.notes[0]}: {difference:.1e}")
    probe.close()


def saved(root, name, changes, **arguments):
    torch.manual_seed(13)
    model = Gemma3ForCausalLM(tiny_config(changes)).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2 if parameter.dim() == 1 else 0.1)
    folder = root / name
    model.save_pretrained(folder, **arguments)
    return folder


def check_saved(binary, root):
    """Folders that transformers saved, and the same tensors under the names that others give them;
    a head that the config ties, equal to the embedding or not."""
    def renamed(folder, change):
        file = folder / "model.safetensors"
        save_file(change(load_file(file)), file, metadata={"format": "pt"})
        return folder

    def under(prefix):
        return lambda tensors: {name.replace("model.", prefix, 1): tensor
                                for name, tensor in tensors.items()}

    def with_head(factor):
        return lambda tensors: {**tensors, "lm_head.weight":
                                (tensors["model.embed_tokens.weight"] * factor).clone()}

    folders = [(saved(root, "text", {}), 0),
               (saved(root, "sharded", dict(rope=dict(rope_type="linear", factor=8.0)), max_shard_size="40KB"), 0),
               (saved(root, "untied", dict(tie_word_embeddings=False)), 0),
               (renamed(saved(root, "equal", {}), with_head(1.0)), 1),
               (renamed(saved(root, "unequal", {}), with_head(-1.5)), 1)]
    for folder, notes in folders:
        check_folder(binary, folder, folder, notes)
    for prefix in ("language_model.model.", "model.language_model."):
        folder = saved(root, "as_" + prefix.replace(".", "_"), {})
        check_folder(binary, renamed(folder, under(prefix)), root / "text", 0)


def check_folder(binary, folder, theirs, notes):
    model = Gemma3ForCausalLM.from_pretrained(theirs, dtype=torch.float32,
                                              attn_implementation="eager").eval()
    probe = Probe(binary, folder)
    assert len(probe.notes) == notes, probe.notes
    check_prompt(f"saved by transformers: {folder.name}", probe, model,
                 random_ids(model.config.vocab_size, 90), 64)
    probe.close()


def check_bfloat16(binary, root):
    """In bfloat16 two right programs differ by their rounding, so both are held against float32:
    ours may lie a little farther from it than transformers' own bfloat16 does, never much."""
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
        assert answer["restored"] == [answer["sha256"]] * len(restores), "other bits"
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
        check_multimodal(sys.argv[1], root)
        check_saved(sys.argv[1], root)
        check_bfloat16(sys.argv[1], root)
    print("ok")


if __name__ == "__main__":
    main()
