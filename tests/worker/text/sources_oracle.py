"""Oracle: for a folder with several tokenizer files, Hearth makes the same ids as transformers, or
refuses to start and names the first differing token.

Usage: sources_oracle.py TEXT_PROBE TOKENIZER_MODEL
"""
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

from transformers import AddedToken, AutoTokenizer

from text_probe_client import Probe
from tokenizer_oracle import WORDS, transformers_tokenizer

NEW = ["<|im_start|>", "<|im_end|>", "THINKING", "keepers of", "<tool>", "light", "<start_of",
       "the lamp"]


def texts(seed=3, more=()):
    rng = random.Random(seed)
    words = WORDS + NEW * 3 + ["keepers", "THINK", "ING", "of the light", "<|im", "_start|>"]
    words += [*more] * 6
    return ["".join(rng.choice(words) for _ in range(rng.randint(1, 20))) for _ in range(300)]


def entry(text, **changes):
    return {"content": text, "lstrip": False, "rstrip": False, "normalized": False,
            "single_word": False, "special": False, **changes}


class Folder:
    """A model folder with tokenizer.json, tokenizer.model, or both, of the same vocabulary."""

    def __init__(self, root, name, source, tokenizer, has_json=True, has_model=True):
        self.path = root / name
        self.path.mkdir()
        self.write("config.json", {"model_type": "gemma3_text"})
        if has_json:
            tokenizer.save(str(self.path / "tokenizer.json"))
        if has_model:
            shutil.copy(source, self.path)

    def write(self, name, value):
        (self.path / name).write_text(json.dumps(value), encoding="utf-8")

    def change(self, name, change):
        value = json.loads((self.path / name).read_text(encoding="utf-8"))
        change(value)
        self.write(name, value)

    def theirs(self):
        return AutoTokenizer.from_pretrained(self.path)


def check_equal(binary, folder, more=()):
    theirs = folder.theirs()
    probe = Probe(binary, folder.path)
    for text in texts(more=more):
        want = theirs.encode(text, add_special_tokens=False)
        got = probe.ask("encode", text=text)["ids"]
        assert got == want, (f"{folder.path.name}: {text!r}\n  here         {got}\n"
                             f"  transformers {want}")
        cuts = sorted(random.Random(text).sample(range(len(text) + 1), min(4, len(text))))
        common = probe.ask("common", text=text, offsets=[len(text[:at].encode()) for at in cuts])
        for at, tokens in zip(cuts, common["common_tokens"]):
            prefix = theirs.encode(text[:at], add_special_tokens=False)
            same = next((i for i, pair in enumerate(zip(prefix, want)) if pair[0] != pair[1]),
                        min(len(prefix), len(want)))
            assert tokens == same, f"{folder.path.name}: {text!r} cut at {at}: {tokens}, not {same}"
    probe.close()
    print(f"{folder.path.name}: {len(texts())} texts equal, {len(theirs)} tokens")


def check_refused(binary, folder, *words):
    ended = subprocess.run([binary, folder.path], input="", capture_output=True, text=True,
                           check=False)
    assert ended.returncode != 0, f"{folder.path.name}: started"
    for word in words:
        assert word in ended.stderr, f"{folder.path.name}: {word!r} is not in: {ended.stderr}"
    print(f"{folder.path.name}: refused: {ended.stderr.strip()[-160:]}")


def check_saved(binary, make, count):
    """Checks folders saved by fine-tuning programs, with special and ordinary added tokens."""
    folder = make("saved by transformers")
    theirs = folder.theirs()
    theirs.add_tokens(["<|im_start|>", "THINKING"])
    theirs.add_special_tokens({"extra_special_tokens": ["<|im_end|>", "<tool>"]})
    theirs.add_tokens([AddedToken("keepers of", normalized=False),
                       AddedToken("light", normalized=False)])
    theirs.save_pretrained(folder.path)
    check_equal(binary, folder)
    # transformers 4 also writes these files.
    folder.write("added_tokens.json", {"<|im_start|>": count, "THINKING": count + 1})
    with open(folder.path / "tokenizer.json", encoding="utf-8") as file:
        added = json.load(file)["added_tokens"]
    decoder = {str(token["id"]): {k: v for k, v in token.items() if k != "id"} for token in added}
    folder.change("tokenizer_config.json", lambda it: it.update(added_tokens_decoder=decoder))
    check_equal(binary, folder)
    folder.change("tokenizer_config.json",
                  lambda it: it.update(tokenizer_class="PreTrainedTokenizerFast"))
    check_equal(binary, folder)


def check_beside(binary, make, count):
    """Checks added tokens that the vocabulary file does not list, but another file does."""
    folder = make("tokenizer.model and its decoder", has_json=False)
    folder.write("tokenizer_config.json", {"added_tokens_decoder": {
        str(count): entry("<|im_start|>", special=True), str(count + 1): entry("THINKING")}})
    check_equal(binary, folder)
    folder = make("tokenizer.model and added_tokens.json", has_json=False)
    folder.write("added_tokens.json", {"<|im_start|>": count, "THINKING": count + 1})
    check_equal(binary, folder)
    folder = make("tokenizer.model and one special token", has_json=False)
    folder.write("tokenizer_config.json", {"image_token": "<tool>", "bos_token": "<bos>"})
    check_equal(binary, folder)
    folder = make("added_tokens.json beside tokenizer.json")
    folder.write("added_tokens.json", {"<|im_start|>": count, "THINKING": count + 1})
    folder.write("special_tokens_map.json", {"eos_token": "<|im_start|>", "pad_token": "<pad>"})
    check_equal(binary, folder)


def check_renamed(binary, make, start):
    """Checks renamed tokens of the vocabulary: the new text in tokenizer.json counts."""
    def rename(new):
        def change(it):
            vocabulary = it["model"]["vocab"]
            vocabulary[new] = vocabulary.pop("<start_of_turn>")
            for token in it["added_tokens"]:
                if token["id"] == start:
                    token["content"] = new
            it["model"]["merges"] = [merge for merge in it["model"]["merges"]
                                     if "".join(merge) != "<start_of_turn>"]
        return change

    for new in ("<|im_start|>", "THINKING", "the lamp"):
        folder = make(f"renamed to {new}")
        folder.change("tokenizer.json", rename(new))
        check_equal(binary, folder)
    folder = make("renamed in the decoder alone")
    folder.write("tokenizer_config.json",
                 {"added_tokens_decoder": {str(start): entry("<|im_start|>")}})
    check_refused(binary, folder, "tokenizer_config.json", "has the added token 0, \"<pad>\"")
    folder = make("renamed beside tokenizer.model", has_json=False)
    folder.write("tokenizer_config.json",
                 {"added_tokens_decoder": {str(start): entry("<|im_start|>")}})
    check_refused(binary, folder, f"token {start} is \"<|im_start|>\"",
                  "has \"<start_of_turn>\" instead")


def check_empty_decoder(binary, make, count):
    """Checks that an empty added_tokens_decoder is refused: one of transformers' classes then
    drops the added tokens of tokenizer.json, and another class keeps them."""
    lengths = set()
    for name in ("GemmaTokenizerFast", "PreTrainedTokenizerFast"):
        folder = make(f"an empty decoder, {name}")
        folder.change("tokenizer.json", lambda it: it["added_tokens"].append(
            {"id": count, **entry("<tool>")}))
        folder.write("tokenizer_config.json", {"tokenizer_class": name, "added_tokens_decoder": {}})
        lengths.add(len(folder.theirs()))
        check_refused(binary, folder, "has the added token 0, \"<pad>\"", "tokenizer_config.json")
    assert lengths == {count, count + 1}, f"the classes agree: {lengths}"
    folder = make("an empty decoder and tokenizer.model", has_json=False)
    folder.write("tokenizer_config.json", {"added_tokens_decoder": {}})
    folder.write("added_tokens.json", {"<|im_start|>": count})  # without effect
    check_equal(binary, folder)


def check_differences(binary, make, count, start):
    folder = make("another id in added_tokens.json")
    folder.write("added_tokens.json", {"<start_of_turn>": start + 1})
    check_refused(binary, folder, f"token {start + 1} is \"<start_of_turn>\"",
                  f"has this token with the id {start}")
    folder = make("two special tokens without ids")
    folder.write("tokenizer_config.json", {"pad_token": "[PAD]", "sep_token": "[SEP]"})
    check_refused(binary, folder, "\"[PAD]\" and \"[SEP]\"")
    folder = make("a token that takes spaces")
    folder.change("tokenizer.json", lambda it: it["added_tokens"].append(
        {"id": count, **entry("<tool>", lstrip=True)}))
    check_refused(binary, folder, "the added token \"<tool>\" has unsupported lstrip")


def check_added(binary, make):
    """Checks normalized added tokens: they are matched after all other tokens."""
    for name, more, add in [
            ("a space inside", ["keepers", " of", "lamp", "keepers\u2581of"],
             lambda it: it.add_tokens(["keepers of", "the lamp"])),
            ("a space in front", [" lamp", "lamp", "\u2581lamp"],
             lambda it: it.add_tokens([" lamp", "  lamp"])),
            ("a mark in front", [" lamp", "lamp", "\u2581lamp"],
             lambda it: it.add_tokens(["\u2581lamp"])),
            ("a space alone", ["  lamp"], lambda it: it.add_tokens([" "])),
            ("spaces alone", ["  lamp", "     "], lambda it: it.add_tokens(["  ", "     "])),
            ("across a special one", ["foo", "<bar", "bar>", "<bar>", ">x"], lambda it: (
                it.add_tokens(["foo<bar", ">xfoo"]),
                it.add_special_tokens({"extra_special_tokens": ["<bar>"]}))),
            ("with line ends", ["\n", "#", "\n#", "x\n"],
             lambda it: it.add_tokens(["\n#", "x\n", "\n \n"])),
            ("texts of others", ["abc", "bcd", "ab", "cd"],
             lambda it: it.add_tokens(["abc", "bcd", "abcde", "cd"])),
            ("pieces", ["the", " of"], lambda it: it.add_tokens(["the", "\u2581of", "7"])),
            ("of both kinds", ["of the", " of", " the", "keepers"], lambda it: it.add_tokens(
                [AddedToken("of the", normalized=False), "keepers of", " the"]))]:
        folder = make("added, " + name)
        theirs = folder.theirs()
        add(theirs)
        theirs.save_pretrained(folder.path)
        check_equal(binary, folder, more)


def check_random(binary, make):
    """Checks random added tokens of every kind, with spaces and with parts of other tokens."""
    rng = random.Random(5)
    words = ["a", "b", " ", "  ", "\n", "<", ">", "the", " of", "\u00e9", "<bos>", "x", "x\u2581"]
    for number in range(20):
        folder = make(f"random {number}")
        theirs = folder.theirs()
        added = {"".join(rng.choice(words) for _ in range(rng.randint(2, 5))) for _ in range(5)}
        for text in sorted(added):
            theirs.add_tokens([AddedToken("x" + text, normalized=rng.random() < 0.7,
                                          special=rng.random() < 0.3)])
        theirs.save_pretrained(folder.path)
        check_equal(binary, folder, [*words, *added, *["x" + text for text in added]])


def check_forms(binary, make, count):
    """Checks unusual but valid variants of tokenizer.json, and invalid variants."""
    def added(*ids):
        names = ["<|im_start|>", "THINKING"]
        return lambda it: it["added_tokens"].extend(
            {"id": id_, **entry(name)} for name, id_ in zip(names, ids))

    def in_vocabulary(it):
        it["model"]["vocab"]["<|im_start|>"] = count + 5
        added(count + 5)(it)

    def last_piece(it):
        vocabulary = it["model"]["vocab"]
        vocabulary[max(vocabulary, key=vocabulary.get)] += 7

    def normalizer(*steps):
        return lambda it: it.update(normalizer={"type": "Sequence", "normalizers": [
            it["normalizer"] if step is None else step for step in steps]})

    empty = {"type": "Sequence", "normalizers": []}
    splitter = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                "invert": False}
    for name, change in [
            ("an added id after a gap", added(count + 5)),
            ("two added ids after a gap", added(count + 2, count + 5)),
            ("a piece's id after a gap", in_vocabulary),
            ("the last piece's id after a gap", last_piece),
            ("a gap, and a token more", lambda it: (in_vocabulary(it), it["added_tokens"].append(
                {"id": count + 6, **entry("THINKING")}))),
            ("a Sequence of one Replace", normalizer(None)),
            ("Sequences of Sequences", normalizer(empty, {"type": "Sequence", "normalizers": [
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]})),
            ("a Sequence of one Split", lambda it: it.update(pre_tokenizer={
                "type": "Sequence", "pretokenizers": [splitter]})),
            ("a model without its type", lambda it: it["model"].pop("type")),
            ("merges as texts", lambda it: it["model"].update(
                merges=[" ".join(merge) for merge in it["model"]["merges"]]))]:
        for tokenizer_class in (None, "PreTrainedTokenizerFast"):
            folder = make(f"{name}, {tokenizer_class}")
            folder.change("tokenizer.json", change)
            if tokenizer_class:
                folder.write("tokenizer_config.json", {"tokenizer_class": tokenizer_class})
            check_equal(binary, folder)
    for name, change, words in [
            ("added ids in another order", added(count + 5, count + 2), "transformers assigns"),
            ("an added id of a piece", added(5), "transformers assigns"),
            ("a Sequence of more", normalizer(None, {"type": "NFC"}), "the normalizer")]:
        folder = make(name)
        folder.change("tokenizer.json", change)
        check_refused(binary, folder, words)
    for name, file, value in [
            ("another file's id after a gap", "added_tokens.json", {"<|im_start|>": count + 3}),
            ("other files' ids after a gap", "added_tokens.json",
             {"<|im_start|>": count + 3, "THINKING": count + 9})]:
        for has_json in (True, False):
            folder = make(f"{name}, {has_json}", has_json=has_json)
            folder.write(file, value)
            check_equal(binary, folder)


def main():
    binary, source = sys.argv[1], sys.argv[2]
    tokenizer, _, tokens, _ = transformers_tokenizer(source)
    with tempfile.TemporaryDirectory() as root:
        def make(name, **which):
            return Folder(pathlib.Path(root), name, source, tokenizer, **which)

        check_equal(binary, make("both files"))
        check_equal(binary, make("tokenizer.model alone", has_json=False))
        check_equal(binary, make("tokenizer.json alone", has_model=False))
        check_saved(binary, make, len(tokens))
        check_beside(binary, make, len(tokens))
        check_added(binary, make)
        check_random(binary, make)
        check_forms(binary, make, len(tokens))
        check_empty_decoder(binary, make, len(tokens))
        check_renamed(binary, make, tokens.index("<start_of_turn>"))
        check_differences(binary, make, len(tokens), tokens.index("<start_of_turn>"))


if __name__ == "__main__":
    main()
