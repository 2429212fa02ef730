"""Loads model folders with variations that tools write. The worker's logits must equal those of
transformers, or its error must name the file and the field.

    folder_oracle.py MODEL_PROBE
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file, save_model
from transformers import (AutoModelForCausalLM, Gemma3Config, Gemma3ForCausalLM,
                          Gemma3ForConditionalGeneration, SiglipVisionConfig)

from model_oracle import BAR, LINEAR, Probe, tiny_config

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
PARTS = dict(max_shard_size="40KB")


def filled(model, seed=13):
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.float().eval().parameters():
            parameter.normal_(0, 0.2 if parameter.dim() == 1 else 0.1)
    return model


def text(**changes):
    return filled(Gemma3ForCausalLM(tiny_config(changes)))


def multimodal(**fields):
    config = Gemma3Config(text_config=tiny_config({}).to_dict(), mm_tokens_per_image=4,
                          vision_config=SiglipVisionConfig(
                              hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                              num_attention_heads=1, image_size=28, patch_size=14).to_dict(),
                          **fields)
    config._attn_implementation = "eager"
    return filled(Gemma3ForConditionalGeneration(config))


# --- changes to a folder ---

def tensors(change):
    def apply(folder):
        file = folder / "model.safetensors"
        save_file(change(load_file(file)), file, metadata={"format": "pt"})
    return apply


def renamed(old, new):
    return tensors(lambda all_: {new + name[len(old):] if name.startswith(old) else name: tensor
                                 for name, tensor in all_.items()})


def added(*names, factor=None):
    """Adds tensors of ones; with a factor, tensors that equal the embedding times the factor."""
    def change(all_):
        embedding = next(tensor for name, tensor in all_.items() if "embed_tokens" in name)
        value = torch.ones(8) if factor is None else embedding * factor
        return {**all_, **{name: value.clone() for name in names}}
    return tensors(change)


def without(name):
    return tensors(lambda all_: {other: tensor for other, tensor in all_.items() if other != name})


def fields(part=None, **changes):
    """Changes fields of config.json; DROP removes a field."""
    def apply(folder):
        file = folder / "config.json"
        config = json.loads(file.read_text())
        for name, value in changes.items():
            (config[part] if part else config)[name] = value
            if value is DROP:
                del (config[part] if part else config)[name]
        file.write_text(json.dumps(config))
    return apply


DROP = object()


def index(change):
    def apply(folder):
        file = folder / "model.safetensors.index.json"
        value = json.loads(file.read_text())
        change(value["weight_map"])
        file.write_text(json.dumps(value))
    return apply


def no_index(folder):
    (folder / "model.safetensors.index.json").unlink()


def no_part(folder):
    no_index(folder)
    (folder / "model-00002-of-00021.safetensors").unlink()


def by_save_model(model, folder):
    model.config.save_pretrained(folder)
    save_model(model, folder / "model.safetensors")


def peft_model(model, **arguments):
    return get_peft_model(model, LoraConfig(r=4, init_lora_weights=False, **arguments))


def merged(**arguments):
    return peft_model(text(), **arguments).merge_and_unload()


def resized():
    model = text()
    model.resize_token_embeddings(310)
    return model


def adapter_beside(folder):
    peft_model(text(), target_modules=["q_proj"]).save_pretrained(folder)


# --- the table ---

SOURCE = "source"  # transformers cannot read the folder, so the saved model is the oracle


def rows():
    """Yields one tuple for each tested folder: name, model, function that changes the folder. Then
    optionally: the expected notes (list), words of the expected refusal (str), or SOURCE; and
    arguments of save_pretrained (dict)."""
    yield "as saved", text(), None
    yield "in parts", text(**LINEAR), None, PARTS
    yield "in parts, without an index", text(), no_index, SOURCE, PARTS
    yield "in one of one parts", text(), lambda folder: (folder / "model.safetensors").rename(
        folder / "model-00001-of-00001.safetensors"), SOURCE
    yield "without an index and a part", text(), no_part, \
        "model-00002-of-00021.safetensors: cannot be opened", PARTS
    yield "an index that names a tied head", text(), \
        index(lambda files: files.update({HEAD: files[EMBEDDING]})), PARTS
    yield "an index of other tensors", text(), index(lambda files: files.update(
        {"model.norm.weight": files[EMBEDDING], "gone.weight": files[EMBEDDING]})), PARTS
    yield "an index without a tensor", text(), \
        index(lambda files: files.pop("model.norm.weight")), PARTS
    yield "an index with a file that is gone", text(), \
        index(lambda files: files.update({HEAD: "gone.safetensors"})), "gone.safetensors", PARTS
    yield "the base model alone", text().model, None
    yield "the base model and a head", text(tie_word_embeddings=False), renamed("model.", "")
    yield "some names with model.", text(), renamed("model.layers.1", "layers.1")
    yield "model. twice", text(), renamed("model.", "model.model.")
    for prefix in ("language_model.model.", "model.language_model.", "language_model.",
                   "base_model.model.model.", "_orig_mod.model.", "module.model."):
        yield f"names with {prefix}", text(), renamed("model.", prefix), SOURCE
    yield "a name twice", text(), added("language_model.norm.weight"), \
        "are both the tensor norm.weight"
    yield "an adapter not merged", text(), \
        added("model.layers.0.self_attn.q_proj.lora_A.weight"), "lora_A.weight is not part of"
    yield "more layers than the config", text(), \
        added("model.layers.4.mlp.up_proj.weight"), "layers.4.mlp.up_proj.weight is not part of"
    yield "a missing norm", text(), without("model.norm.weight"), "model.norm.weight is missing"
    yield "rotations of an old file", text(), \
        added("model.layers.0.self_attn.rotary_emb.inv_freq"), ["rotary_emb.inv_freq"]
    yield "a classifier's and a value head", text(), \
        added("score.weight", "v_head.summary.weight"), ["score.weight, v_head.summary.weight"]
    yield "a tied head that equals", text(), added(HEAD, factor=1.0), ["ignored"]
    yield "a tied head that differs", text(), added(HEAD, factor=-1.5), ["is used"]
    yield "a tied head alone", text(), renamed(EMBEDDING, HEAD)
    yield "by safetensors' save_model", by_save_model, None
    yield "untied", text(tie_word_embeddings=False), None
    yield "untied without a head", text(tie_word_embeddings=False), without(HEAD), \
        "lm_head.weight is missing"
    yield "merged by PEFT", merged(target_modules=["q_proj", "v_proj"]), None
    yield "merged by PEFT, with its embedding", \
        merged(target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"]), None
    yield "an adapter beside the weights", text(), adapter_beside, "adapter_config.json"
    yield "resized", resized(), None
    yield "a name in the config", text(), fields(transformers_weights="x.safetensors"), \
        "field transformers_weights"
    yield "multimodal", multimodal(), None, ["vision tensors"]
    yield "multimodal, in parts without an index", multimodal(), no_index, SOURCE, PARTS
    yield "multimodal, without a head", multimodal().model, None, ["vision tensors"]
    yield "multimodal, in memory's names", multimodal(), \
        renamed("language_model.model.", "model.language_model."), ["vision tensors"]
    yield "multimodal, a tied head", multimodal(), \
        added("language_model.lm_head.weight", factor=1.0), ["ignored", "vision tensors"]
    yield "multimodal, untied", multimodal(tie_word_embeddings=False), None, ["vision tensors"]
    yield "multimodal, untied inside", multimodal(tie_word_embeddings=False), (
        fields(tie_word_embeddings=DROP), fields("text_config", tie_word_embeddings=False)), \
        ["is used", "vision tensors"]
    yield "multimodal, untied inside, no head", multimodal(), (
        fields(tie_word_embeddings=DROP), fields("text_config", tie_word_embeddings=False)), \
        ["vision tensors"]
    yield "no window", text(), fields(sliding_window=None), "field sliding_window"


FULL, LOCAL = "full_attention", "sliding_attention"
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=256)
# Fields of config.json that replace rope_parameters; then the expected notes (list), or words of
# the expected refusal (str).
ROPES = [
    (dict(), []),
    (dict(rope_theta=5e4, rope_local_base_freq=700.0), []),
    (dict(rope_theta=33.0, rope_local_base_freq=44.0,
          rope_parameters={FULL: {"rope_type": "default", "rope_theta": 5e4}, LOCAL: {}}), []),
    (dict(rope_parameters={FULL: {"rope_theta": 5e4}, LOCAL: {"rope_theta": 700.0},
                           "rope_theta": 3.0, "rope_type": "linear", "factor": 3.0}),
     []),
    (dict(rope_parameters={"rope_theta": 3.0, "rope_type": "default"}), []),
    (dict(rope_theta=33.0, rope_parameters={FULL: None, LOCAL: None}), []),
    (dict(rope_scaling={"rope_type": "linear", "factor": 4.0, "rope_theta": 9.0},
          rope_parameters={FULL: {"rope_type": "default", "rope_theta": 5e4}}), []),
    (dict(rope_parameters={FULL: {"type": "linear", "factor": 2.0}}), []),
    (dict(rope_scaling={"rope_type": "linear", "factor": 8.0}), []),
    (dict(rope_scaling={"type": "linear", "factor": 8.0}), "rope_scaling"),
    (dict(rope_scaling=YARN), []),
    (dict(rope_scaling={**YARN, "beta_fast": 8, "beta_slow": 0.5}, rope_theta=5e4), []),
    (dict(rope_scaling={**YARN, "attention_factor": 1.5}), []),
    (dict(rope_scaling={**YARN, "mscale": 0.7, "mscale_all_dim": 0.3}), []),
    (dict(rope_scaling={**YARN, "mscale": 0.7, "mscale_all_dim": 0}), []),
    (dict(rope_scaling={"rope_type": "yarn", "factor": 4.0}), []),
    (dict(rope_scaling={**YARN, "original_max_position_embeddings": 4}), []),
    (dict(rope_scaling={**YARN, "original_max_position_embeddings": 10**8}), []),
    (dict(rope_parameters={FULL: YARN, "truncate": False}), []),
    (dict(rope_parameters={FULL: YARN, LOCAL: {**YARN, "factor": 2.0}}), []),
    (dict(rope_scaling={**YARN, "truncate": False}), "field truncate"),
    (dict(rope_scaling={"rope_type": "yarn", "factor": None}), "field factor"),
    (dict(rope_scaling={**YARN, "factor": 0.5}), "field factor"),
    (dict(rope_scaling={**YARN, "partial_rotary_factor": 0.5}), "field partial_rotary_factor"),
    (dict(rope_scaling={"rope_type": "dynamic", "factor": 4.0}),
     "\"dynamic\": must be default, linear or yarn"),
    (dict(rope_scaling={"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1,
                        "high_freq_factor": 4}),
     "\"llama3\": must be default, linear or yarn"),
    (dict(rope_scaling={"rope_type": "longrope", "short_factor": [1.0] * 8,
                        "long_factor": [2.0] * 8}),
     "\"longrope\": must be default, linear or yarn"),
]


def refusal(binary, folder):
    ended = subprocess.run([binary, folder, "float32"], input="", capture_output=True, text=True,
                           check=False)
    assert ended.returncode != 0, "started"
    return ended.stderr


def check(binary, folder, name, expected, model):
    """Compares the worker's logits with those of `model`; None: of the folder as transformers reads
    it. If `expected` is a str, requires a refusal with these words instead."""
    if isinstance(expected, str):
        words = refusal(binary, folder)
        assert expected in words and str(folder) in words, f"{name}: {words}"
        print(f"{name:44} refused: {words.strip()[-120:]}", flush=True)
        return
    if model is None:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        assert not report["missing_keys"], f"{name}: {report}"
    vocab = model.config.get_text_config().vocab_size
    ids = torch.randint(0, vocab, (300,)).tolist()
    with torch.inference_mode():
        theirs = model.eval()(torch.tensor([ids])).logits[0, -1].numpy()
    probe = Probe(binary, folder)
    _, ours = probe.answer(vocab, ids=ids, chunk=32, greedy=1)
    difference = float(numpy.abs(ours[0] - theirs).max())
    assert difference <= BAR, f"{name}: logits differ by {difference:.2e}"
    if expected is not None:
        assert len(probe.notes) == len(expected), f"{name}: {probe.notes}"
        for note, word in zip(probe.notes, expected):
            assert word in note, f"{name}: {word!r} is not in {note!r}"
    probe.close()
    print(f"{name:44} {difference:.1e}", flush=True)


def check_rows(binary, root):
    for number, (name, model, change, *more) in enumerate(rows()):
        folder = root / str(number)
        expected = next((one for one in more if not isinstance(one, dict)), [])
        arguments = next((one for one in more if isinstance(one, dict)), {})
        if hasattr(model, "save_pretrained"):
            model.save_pretrained(folder, **arguments)
        else:
            model(text(), folder)
        for apply in change if isinstance(change, tuple) else filter(None, [change]):
            apply(folder)
        is_source = expected == SOURCE
        check(binary, folder, name, None if is_source else expected, model if is_source else None)
        shutil.rmtree(folder)


def check_ropes(binary, root):
    folder = root / "ropes"
    text().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"]
    for changes, expected in ROPES:
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        check(binary, folder, str(changes)[:44], expected, None)


def main():
    with tempfile.TemporaryDirectory() as name:
        check_ropes(sys.argv[1], pathlib.Path(name))
        check_rows(sys.argv[1], pathlib.Path(name))
    print("ok")


if __name__ == "__main__":
    main()
