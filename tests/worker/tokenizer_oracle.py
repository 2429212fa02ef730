"""Oracle: token ids and decoded text equal those of transformers' Gemma tokenizer.

Usage: tokenizer_oracle.py TEXT_PROBE MODEL_DIR [--examples chat_template_examples.json]

transformers' tokenizer is built by transformers itself, with the code that it uses for GGUF files
of Gemma 3, from the list of pieces in MODEL_DIR/tokenizer.model: vocabulary, merges and added
tokens are its own. The GGUF file of the base model has no chat template, so that template's oracle
are the examples: chats rendered and tokenized with the published template and tokenizer.
"""
import argparse
import json
import os
import random
import sys

import sentencepiece
from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

from text_probe_client import Probe

CONTROL, USER_DEFINED = 3, 4

TEXTS = [
    "", " ", "  ", "   a", "a   ", "Hello!", "Hello, world. ", "\n", "a\n\n\nb", "\t\tx\ty",
    "a\r\nb", " " * 31 + "a", " " * 32 + "a", " " * 33, "if" + " " * 100 + "x", " " * 1000,
    "The lighthouse keeper climbs 243 steps, twice a day; in winter it's dark by 4 o'clock.",
    "def f(x):\n    if x > 0:\n        return [i ** 2 for i in range(x)]\n\n\n    return None\n",
    "for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }  // naïve",
    "Ünïcödé: ß ﬁ é e\u0301 日本語のテキスト 한국어 עברית العربية हिन्दी ไทย",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈", "a\u00a0b\u2003c\u3000d\u200be", "▁a ▁▁ b",
    "\x00\x01\x7f", "x" * 500, "é" * 300,
    "<bos>", "<bos><bos>a<eos>", "a <unk> b<pad>", "<start_of_turn>user\nhi<end_of_turn>\n",
    "<start_of", "<bos", "<<bos>>", "<table><tr><td>1</td></tr></table>",
    "<unused7> [multimodal] <mask>",
    "<p>a</p> </p> </div> </", "1234567890 3.14159 -42 1,000,000",
    "aaaa" * 64, "          deep\n                    deeper",
    "a\u2028b\u2029c\u0085d", "\U0010ffff\ue000", "https://example.org/a?b=c&d=%20#e",
]
WORDS = ["the", " of", " a", "keeper", " ", "  ", "    ", "\n", "\n\n", "\t", "12", "7", ".", ",",
         "<", ">", "<bos>", "<eos>", "<unk>", "<end_of_turn>", "<start_of_turn>", "é", "日本", "🙂",
         "ß", "x", "Ab", "ing", "</", "table>", "<table>", "_", "▁", "'s", "\u00a0", "\x00",
         "def ", "(i", ");"]


def read_fields(message):
    """(field number, value) of a protobuf message; fixed-size values stay bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(tag & 7) or varint()
        yield tag >> 3, message[at:at + size]
        at += size


def transformers_tokenizer(model_path):
    with open(model_path, "rb") as file:
        model = file.read()
    tokens, types = [], []
    for number, piece in read_fields(model):
        if number == 1:
            fields = dict(read_fields(piece))
            tokens.append(fields[1].decode("utf-8"))
            types.append(fields.get(3, 1))
    processor = sentencepiece.SentencePieceProcessor(model_file=model_path)
    assert tokens == [processor.id_to_piece(i) for i in range(processor.get_piece_size())], \
        "the list of pieces was misread"
    tokenizer, _ = convert_gguf_tokenizer("gemma3", {
        "tokenizer_type": "llama", "tokens": tokens, "token_type": types})
    return tokenizer


def random_texts(count, seed=0):
    rng = random.Random(seed)
    return ["".join(rng.choice(WORDS) for _ in range(rng.randint(1, 40))) for _ in range(count)]


def check_texts(probe, oracle, texts):
    different = []
    for text in texts:
        want = oracle.encode(text, add_special_tokens=False).ids
        got = probe.ask("encode", text=text)["ids"]
        if got != want:
            different.append(f"{text!r}\n  here         {got}\n  transformers {want}")
            continue
        for skip in (False, True):
            decoded = probe.ask("decode", ids=got, skip_special=skip)["text"]
            if not skip:
                expected = oracle.decode(want, skip_special_tokens=False)
                assert decoded == expected, f"{text!r}: decoded as {decoded!r}, not {expected!r}"
            else:
                streamed = probe.ask("stream", ids=got)["text"]
                assert streamed == decoded, f"{text!r}: streamed as {streamed!r}, not {decoded!r}"
    if different:
        sys.exit(f"{len(different)} of {len(texts)} texts differ:\n" + "\n".join(different[:10]))


def check_common_tokens(probe, oracle, texts):
    """A breakpoint: the longest common token prefix of the text up to there and the whole."""
    checked = 0
    for text in texts:
        whole = oracle.encode(text, add_special_tokens=False).ids
        cuts = range(len(text) + 1)
        answer = probe.ask("common", text=text, offsets=[len(text[:at].encode()) for at in cuts])
        for at, common in zip(cuts, answer["common_tokens"]):
            prefix = oracle.encode(text[:at], add_special_tokens=False).ids
            want = next((i for i, pair in enumerate(zip(prefix, whole)) if pair[0] != pair[1]),
                        min(len(prefix), len(whole)))
            assert common == want, f"{text!r} cut at {at}: {common} common tokens, not {want}"
            checked += 1
    return checked


def check_examples(probe, oracle, path):
    with open(path, encoding="utf-8") as file:
        examples = json.load(file)
    for example in examples:
        answer = probe.ask("chat", messages=example["messages"],
                           add_generation_prompt=example["add_generation_prompt"])
        assert answer["text"] == example["text"], f"{example['name']}: {answer}"
        assert answer["ids"] == example["ids"], f"{example['name']}: {answer['ids']}"
        assert oracle.encode(example["text"], add_special_tokens=False).ids == example["ids"], \
            f"{example['name']}: the oracle itself disagrees with the published ids"
    return len(examples)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("probe")
    parser.add_argument("model_dir")
    parser.add_argument("--examples")
    parser.add_argument("--text-file", action="append", default=[])
    args = parser.parse_args()
    oracle = transformers_tokenizer(os.path.join(args.model_dir, "tokenizer.model"))
    probe = Probe(args.probe, args.model_dir)
    texts = TEXTS + random_texts(1500)
    for path in args.text_file:
        with open(path, encoding="utf-8") as file:
            texts.append(file.read())
    check_texts(probe, oracle, texts)
    cuts = check_common_tokens(probe, oracle, TEXTS + random_texts(60, seed=1))
    examples = check_examples(probe, oracle, args.examples) if args.examples else 0
    bos = probe.ask("prompt", text="a")["ids"][0]
    assert bos == 2, f"a prompt begins with {bos}, not <bos>"
    probe.close()
    print(f"{len(texts)} texts, {cuts} cuts, {examples} chats: equal to transformers")


if __name__ == "__main__":
    main()
