"""Oracle: token ids and decoded text equal those of transformers' Gemma tokenizer; ids also equal
SentencePiece's where the two agree by design. Sources: tokenizer.model, the tokenizer.json that
transformers writes, and several forms of a GGUF header.

Usage: tokenizer_oracle.py TEXT_PROBE MODEL_DIR [--gguf FILE] [--examples FILE]

transformers builds its tokenizer from the pieces in MODEL_DIR/tokenizer.model, with its code for
GGUF files of Gemma 3, so vocabulary, merges and added tokens come from transformers. The base
model's GGUF file has no chat template. --examples checks the template: FILE has chats rendered and
tokenized with the published template and tokenizer.
"""
import argparse
import json
import os
import random
import re
import sys
import tempfile

import gguf
import sentencepiece
from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

from text_probe_client import Probe

NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6
GEMMA_PIECES = 262144

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
# Ranges of characters to draw from, and sentences to cut and join at random.
SCRIPTS = {
    "latin": "A-z", "latin with marks": "\u00c0-\u024f", "greek": "\u0370-\u03ff",
    "cyrillic": "\u0400-\u04ff", "hebrew": "\u05d0-\u05ea", "arabic": "\u0600-\u06ff",
    "devanagari": "\u0900-\u097f", "bengali": "\u0980-\u09ff", "tamil": "\u0b80-\u0bff",
    "thai": "\u0e00-\u0e5b", "georgian": "\u10a0-\u10ff", "ethiopic": "\u1200-\u137f",
    "kana": "\u3040-\u30ff", "han": "\u4e00-\u5fff", "hangul": "\uac00-\ud7a3",
    "combining marks": "\u0300-\u036f", "punctuation": "\u2000-\u206f",
    "around the space mark": "\u2570-\u2590", "arrows and mathematics": "\u2190-\u22ff",
    "emoji": "\U0001f300-\U0001f6ff", "control characters": "\x00-\x1f", "latin 1": "\x7f-\xff",
    "private use": "\ue000-\ue0ff", "no characters": "\U000e0000-\U000e01ff",
}
SENTENCES = [
    "The keeper's lamp was lit at six; nobody (or so it seems) saw 3,141 ships pass by.",
    "Die Tür bleibt über Nacht geöffnet, außer an Donaudampfschifffahrtsgesellschaftstagen.",
    "Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "دخلت المدينة القديمة في المساء، وكان الضوء خافتًا على الجدران.",
    "הדלת נשארת פתוחה כל הלילה, וכל אחד יכול להיכנס.",
    "वह हर सुबह दीपक को साफ़ करता है और सीढ़ियाँ चढ़ता है।",
    "ผู้ดูแลประภาคารปีนบันไดทุกเย็นก่อนพระอาทิตย์ตก",
    "灯台守は毎晩階段を上り、ランプを磨いてから日誌をつける。",
    "守塔人每天傍晚爬上楼梯,擦亮灯,然后写下每一艘经过的船。",
    "등대지기는 매일 저녁 계단을 올라 등불을 닦는다.",
    "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇫🇮🇯🇵 ❤️‍🔥 1️⃣ e\u0301\u0323\u0302 क्‍ष",
    "> </ <p> </p>\t\t<td>  x</td>\r\n\r\n   \u00a0\u3000\u200b\u200d\ufeff",
]


def read_fields(message):
    """Yields (field number, value) of a protobuf message. Fixed-size values stay bytes."""
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
    return tokenizer, processor, tokens, types


def write_gguf(path, model, **lists):
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_tokenizer_model(model)
    for name, values in lists.items():
        writer.add_array(f"tokenizer.ggml.{name}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def gguf_forms(folder, processor, tokens, types):
    """Writes the vocabulary as GGUF files, and yields their paths: the two files that llama.cpp's
    converter makes (from tokenizer.model and from tokenizer.json) and, for Gemma's own vocabulary,
    a file like Google's, whose token types are wrong."""
    # In never-merged pieces, the converter writes spaces as spaces.
    tokens = [token.replace("\u2581", " ") if kind == USER_DEFINED else token
              for token, kind in zip(tokens, types)]
    scores = [processor.get_score(i) if kind == NORMAL else -1000.0 for i, kind in enumerate(types)]
    yield write_gguf(os.path.join(folder, "scores"), "llama", tokens=tokens, scores=scores,
                     token_type=types)
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as file:
        merges = [" ".join(merge) for merge in json.load(file)["model"]["merges"]]
    no_bytes = [NORMAL if kind == BYTE else kind for kind in types]
    yield write_gguf(os.path.join(folder, "merges"), "gpt2", tokens=tokens, merges=merges,
                     token_type=no_bytes)
    if len(tokens) >= GEMMA_PIECES:
        wrong = [NORMAL if kind == USER_DEFINED else kind for kind in types]
        yield write_gguf(os.path.join(folder, "zeros"), "llama", tokens=tokens,
                         scores=[0.0] * len(tokens), token_type=wrong)


def random_texts(count, seed=0):
    rng = random.Random(seed)
    return ["".join(rng.choice(WORDS) for _ in range(rng.randint(1, 40))) for _ in range(count)]


def script_texts(count, seed):
    """Returns `count` texts of characters per script, and as many texts of parts of sentences."""
    rng = random.Random(seed)
    texts = []
    for span in SCRIPTS.values():
        first, last = ord(span[0]), ord(span[-1])
        for _ in range(count):
            words = ["".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 9)))
                     for _ in range(rng.randint(1, 12))]
            texts.append(rng.choice(["", " ", " ", "\n", "  "]).join(words))
    for _ in range(count * len(SCRIPTS)):
        parts = []
        for _ in range(rng.randint(1, 8)):
            sentence = rng.choice(SENTENCES)
            begin = rng.randrange(len(sentence))
            parts.append(sentence[begin:begin + rng.randint(1, 30)])
            parts.append(rng.choice(["", " ", "\n", rng.choice(WORDS), " " * rng.randint(1, 40)]))
        texts.append("".join(parts))
    # Words of 1 kB, and a word that is long enough to be stopped.
    for sentence in SENTENCES:
        word = sentence.replace(" ", "")
        texts.append(word * (1000 // len(word) + 1))
    texts.append(SENTENCES[7] * 120)
    return texts


def sentencepiece_agrees(processor, text):
    """Returns whether SentencePiece should give the same ids. SentencePiece ignores control pieces
    in text, and splits long runs of spaces, or runs mixed with U+2581, differently. In these cases
    Hearth follows transformers.
    """
    spaces = 2
    while processor.id_to_piece(processor.piece_to_id("\u2581" * spaces)) == "\u2581" * spaces:
        spaces += 1
    other = r"<(bos|eos|pad|unk)>|[ \u2581]{%d}| \u2581|\u2581 " % spaces
    return not re.search(other, text)


def check_texts(probe, oracle, processor, texts):
    different = []
    compared = 0
    for text in texts:
        want = oracle.encode(text, add_special_tokens=False).ids
        got = probe.ask("encode", text=text)["ids"]
        if got != want:
            different.append(f"{text!r}\n  here         {got}\n  transformers {want}")
            continue
        if sentencepiece_agrees(processor, text):
            compared += 1
            peer = processor.encode(text)
            if got != peer:
                different.append(f"{text!r}\n  here          {got}\n  sentencepiece {peer}")
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
    return compared


def check_common_tokens(probe, oracle, texts):
    """Checks breakpoints: the common token prefix of the text up to there and the whole text."""
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


def check_long_lines(probe):
    """Checks that a line of 300 KB with many breakpoints is accepted, in scripts without spaces."""
    for sentence in SENTENCES:
        if " " in sentence:
            continue
        line = sentence * (300_000 // len(sentence.encode()))
        offsets = [len(line[:len(line) * part // 31].encode()) for part in range(1, 31)]
        answer = probe.ask("common", text=line, offsets=offsets)
        assert "error" not in answer, f"a line of {sentence!r}: {answer['error']}"


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
    parser.add_argument("--gguf", action="append", default=[], help="a file of the same model")
    parser.add_argument("--text-file", action="append", default=[])
    parser.add_argument("--each-script", type=int, default=20, help="texts of each script")
    parser.add_argument("--seed", type=int, default=2)
    args = parser.parse_args()
    oracle, processor, tokens, types = transformers_tokenizer(
        os.path.join(args.model_dir, "tokenizer.model"))
    texts = TEXTS + SENTENCES + random_texts(1500) + script_texts(args.each_script, args.seed)
    for path in args.text_file:
        with open(path, encoding="utf-8") as file:
            texts.append(file.read())
    with tempfile.TemporaryDirectory() as json_dir:
        oracle.save(os.path.join(json_dir, "tokenizer.json"))
        for source in (args.model_dir, *args.gguf, json_dir,
                       *gguf_forms(json_dir, processor, tokens, types)):
            probe = Probe(args.probe, source)
            compared = check_texts(probe, oracle, processor, texts)
            cuts = check_common_tokens(probe, oracle, TEXTS + SENTENCES + random_texts(60, seed=1))
            check_long_lines(probe)
            examples = check_examples(probe, oracle, args.examples) if args.examples else 0
            bos = probe.ask("prompt", text="a")["ids"][0]
            assert bos == 2, f"a prompt begins with {bos}, not <bos>"
            probe.close()
            name = os.path.basename(source)
            print(f"{name}: {len(texts)} texts, {cuts} cuts, {examples} chats: equal to "
                  f"transformers; {compared} texts: equal to SentencePiece")


if __name__ == "__main__":
    main()
