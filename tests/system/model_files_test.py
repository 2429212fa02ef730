"""The converted model folder, compared with the original GGUF file.

tests/golden/gemma_tokenizer_ids.json has token ids from transformers, with the tokenizer that it
reads from the GGUF header; the SentencePiece model must give the same ids. The weights must have
the known digest, and must continue a sentence as known.
"""

import hashlib
import json
import pathlib
import sys
import unittest

import safetensors
import sentencepiece
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "gemma-3-270m"
GOLDEN = ROOT / "tests" / "golden" / "gemma_tokenizer_ids.json"
WEIGHTS_SHA256 = "d9df495ac8121f17441f73a45548b59cd75068fbd5e57ed0883c9e4a443fe908"
PROMPT = "Water boils at a temperature of"
CONTINUATION = " 100 degrees Celsius."
BOS = 2


def tokenizer():
    return sentencepiece.SentencePieceProcessor(model_file=str(MODEL / "tokenizer.model"))


class ModelFilesTest(unittest.TestCase):
    def test_tokenizer_ids_equal_gguf_ids(self):
        pieces = tokenizer()
        rows = json.loads(GOLDEN.read_text(encoding="utf-8"))
        self.assertGreaterEqual(len(rows), 50)
        for row in rows:
            self.assertEqual(pieces.encode(row["text"]), row["ids"], repr(row["text"]))

    def test_tokenizer_round_trip_keeps_text(self):
        pieces = tokenizer()
        for row in json.loads(GOLDEN.read_text(encoding="utf-8")):
            if "\u2581" not in row["text"]:
                self.assertEqual(pieces.decode(row["ids"]), row["text"])

    def test_special_token_ids_match_gemma(self):
        pieces = tokenizer()
        self.assertEqual(pieces.vocab_size(), 262144)
        self.assertEqual((pieces.pad_id(), pieces.eos_id(), pieces.bos_id(), pieces.unk_id()),
                         (0, 1, BOS, 3))
        self.assertEqual(pieces.piece_to_id("<start_of_turn>"), 105)
        self.assertEqual(pieces.piece_to_id("<end_of_turn>"), 106)

    def test_weights_are_bfloat16_and_complete(self):
        with safetensors.safe_open(MODEL / "model.safetensors", framework="pt") as weights:
            names = list(weights.keys())
            dtypes = {weights.get_slice(name).get_dtype() for name in names}
        self.assertEqual((len(names), dtypes), (236, {"BF16"}))

    def test_weights_match_published_digest(self):
        digest = hashlib.sha256((MODEL / "model.safetensors").read_bytes()).hexdigest()
        self.assertEqual(digest, WEIGHTS_SHA256)

    def test_transformers_continues_known_sentence(self):
        pieces = tokenizer()
        model = transformers.Gemma3ForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        ids = torch.tensor([[BOS] + pieces.encode(PROMPT)])
        wanted = pieces.encode(CONTINUATION)
        out = model.generate(ids, max_new_tokens=len(wanted), do_sample=False)
        self.assertEqual(pieces.decode(out[0, ids.shape[1]:].tolist()), CONTINUATION)


if __name__ == "__main__":
    if not (MODEL / "model.safetensors").is_file():
        sys.exit(f"{MODEL} is missing: run ./hearth setup --safetensors")
    unittest.main()
