"""Oracle: the engine's beam search equals transformers' generate(num_beams=N).

    beam_oracle.py BEAM_PROBE tiny            random checkpoints of small, odd geometries
    beam_oracle.py BEAM_PROBE real MODEL_DIR  the real 270M model, some prompts

Both modes compare tokens, finish reasons, and scores (within 1e-4). If transformers' float32 and
float64 answers to a prompt differ, rounding decides the search, and the prompt is skipped. Few
prompts may be skipped.
"""

import os
import pathlib
import sys
import tempfile

import torch
from transformers import Gemma3ForCausalLM, StoppingCriteria

sys.path.append(str(pathlib.Path(__file__).parents[1] / "model"))
from model_oracle import GEOMETRIES, Probe, run, tiny_config  # noqa: E402

BAR = 1e-4
# (beams, tokens, length penalty, early stopping)
SEARCHES = [(2, 12, 1.0, False), (4, 40, 1.0, False), (8, 24, 1.0, True), (4, 24, 0.0, False),
            (8, 12, 2.0, False), (2, 40, -0.5, True), (8, 30, -1.0, False), (4, 1, 1.0, False)]


STOPPED = [(4, 24, 1.0, False), (8, 30, 0.5, False), (2, 30, -0.5, True)]


class StopBelow(StoppingCriteria):
    """Ends a beam like a stop string. Most candidates may end this way."""

    def __init__(self, below):
        self.below = below

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] % 5 < self.below


class Tally:
    """Counts comparisons by kind. check() fails if a kind has too few."""

    def __init__(self):
        self.equal = self.left_out = self.ended = self.stopped = self.unlike_greedy = 0

    def check(self):
        print(f"{self.equal} equal, {self.left_out} left out; {self.ended} ended with an end "
              f"token, {self.stopped} with a stop, {self.unlike_greedy} unlike greedy")
        assert self.left_out * 10 <= self.equal, "too many were left out"
        assert self.ended * 10 >= self.equal, "hardly any ended with an end token"
        assert self.stopped * 20 >= self.equal, "hardly any ended with a stop"
        assert self.unlike_greedy * 3 >= self.equal, "most are what greedy gives"


@torch.inference_mode()
def their_answer(model, ids, search, ends, stop_below=0):
    """Returns transformers' tokens without the end token, the finish reason, and the score."""
    beams, tokens, length_penalty, early_stopping = search
    out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)).long(),
                         num_beams=beams, do_sample=False, max_new_tokens=tokens,
                         length_penalty=length_penalty, early_stopping=early_stopping,
                         eos_token_id=ends or None, pad_token_id=0, return_dict_in_generate=True,
                         output_scores=True,
                         stopping_criteria=[StopBelow(stop_below)] if stop_below else None)
    answer = out.sequences[0, len(ids):].tolist()
    score = out.sequences_scores[0].item()
    if ends and answer[-1] in ends:
        return answer[:-1], "eos", score
    return answer, "stop" if answer[-1] % 5 < stop_below else "length", score


def compare(name, probe, models, ids, search, ends, tally, stop_below=0):
    """Compares both implementations. Returns transformers' tokens."""
    answers = [their_answer(model, ids, search, ends, stop_below) for model in models]
    tokens, reason, score = answers[0]
    if any(other[:2] != (tokens, reason) for other in answers[1:]):
        tally.left_out += 1
        return tokens
    beams, most, length_penalty, early_stopping = search
    ours = probe.ask(ids=ids, beams=beams, max_new_tokens=most, length_penalty=length_penalty,
                     early_stopping=early_stopping, ignore_eos=not ends, stop_below=stop_below)
    what = f"{name}, {len(ids)} tokens, {search}, end tokens {ends}"
    assert ours["tokens"] == tokens, f"{what}:\n{ours}, theirs\n{tokens} {score}"
    assert ours["reason"] == reason, f"{what}: {ours['reason']}, theirs {reason}"
    assert abs(ours["score"] - score) <= BAR * max(1, abs(score)), \
        f"{what}: score {ours['score']}, theirs {score}"
    greedy = probe.ask(ids=ids, beams=1, max_new_tokens=most, ignore_eos=not ends)
    tally.equal += 1
    tally.ended += reason == "eos"
    tally.stopped += reason == "stop"
    tally.unlike_greedy += not stop_below and greedy["tokens"] != tokens
    return tokens


def write_ends(model, folder, ends):
    """Sets the checkpoint's end tokens, in the files that transformers and the worker read."""
    model.config.eos_token_id = ends
    model.generation_config.eos_token_id = ends
    model.generation_config.save_pretrained(folder)
    model.config.save_pretrained(folder)


def run_tiny(binary):
    tally = Tally()
    for number in (0, 2, 4, 8, 9):
        name, changes = GEOMETRIES[number]
        torch.manual_seed(100 + number)
        model = Gemma3ForCausalLM(tiny_config(changes)).float().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 0.3 if parameter.dim() == 1 else 0.15)
        prompts = [torch.randint(0, 300, (tokens,)).tolist() for tokens in (5, 70, 300)]
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            models = [model, Gemma3ForCausalLM.from_pretrained(folder, dtype=torch.float64,
                                                               attn_implementation="eager").eval()]
            probe = Probe(binary, folder, "2")
            answers = [compare(name, probe, models, ids, search, [], tally)
                       for ids in prompts for search in SEARCHES[:3]]
            for search in STOPPED:
                for stop_below in (1, 3):
                    compare(name, probe, models, prompts[1], search, [], tally, stop_below)
            probe.close()
            ends = sorted({answers[0][5], answers[4][7], answers[7][3]})
            write_ends(model, folder, ends)
            probe = Probe(binary, folder, "2")
            for ids in prompts:
                for search in SEARCHES:
                    compare(name, probe, models, ids, search, ends, tally)
            probe.close()
        print(f"{name:46} {tally.equal} equal so far", flush=True)
    tally.check()


def run_real(binary, model_dir):
    import sentencepiece
    pieces = sentencepiece.SentencePieceProcessor(
        model_file=str(pathlib.Path(model_dir) / "tokenizer.model"))
    model = Gemma3ForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    probe = Probe(binary, model_dir, os.environ.get("OMP_NUM_THREADS", "2"))
    for text in ("Water boils at", "The capital of France is", "Once upon a time there was a",
                 "def add(a, b):\n    "):
        ids = [2] + pieces.encode(text)
        for search in ((2, 16, 1.0, False), (4, 24, 1.0, False), (8, 12, 1.0, True)):
            tally = Tally()
            compare("270M", probe, [model], ids, search, [1, 106], tally)
            print(f"270M {text!r:34} {search}", flush=True)
    probe.close()


if __name__ == "__main__":
    run(run_tiny, run_real)
