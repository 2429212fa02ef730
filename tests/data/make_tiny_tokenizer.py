#!/usr/bin/env python3
"""Writes tiny_tokenizer/tokenizer.model: a SentencePiece model shaped like Gemma's, in 10 KB.

Same kinds of pieces in the same order (control, unknown, user-defined, byte, then trained ones),
same normalisation (none), so that unit tests need no download. The file is committed; run this
again only to change it: tests know its properties, not its ids.
"""
import os
import sys

import sentencepiece

CORPUS = """
The keeper of the light climbs the stairs before the evening comes and trims the lamp.
When the wind turns to the north the sea grows loud and the boats come home early.
She wrote down every ship that passed, the hour it passed, and the colour of its flag.
A letter takes three days to reach the town when the road is dry, and ten when it is not.
He counted 12 barrels, 340 nails, and 7 coils of rope; nothing was missing.
def count(values): return sum(1 for value in values if value > 0)
for (int i = 0; i < 10; ++i) { total += table[i]; }
Le phare est allumé à six heures. Die Tür bleibt über Nacht geöffnet. El faro está lejos.
What is the name of the island? Who was the first keeper? How far is the next harbour?
The lamp, the lens, the stairs, the door: each of them is cleaned on a different morning.
""".strip().split("\n")

MARKERS = ["<mask>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>",
           "<table>", "</table>"]
RUNS = ["\n" * n for n in range(1, 5)] + ["▁" * n for n in range(2, 6)]


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(
        os.path.dirname(os.path.abspath(__file__)), "tiny_tokenizer", "tokenizer.model")
    with open(out, "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS * 4), model_writer=file, model_type="bpe",
            vocab_size=700, character_coverage=1.0, byte_fallback=True, split_digits=True,
            normalization_rule_name="identity", add_dummy_prefix=False,
            remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
            pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", eos_piece="<eos>",
            bos_piece="<bos>", unk_piece="<unk>", user_defined_symbols=MARKERS + RUNS,
            minloglevel=2)
    print(out, os.path.getsize(out), "bytes")


if __name__ == "__main__":
    main()
