"""A search with several beams on the real 270M, beside transformers' generate(num_beams).

    .venv/bin/python -B bench/worker/beams.py [--model DIR] [--beams 4] [--prompt 128]
                                              [--tokens 32] [--turns 5] [--threads 2]

By turns in one run, float32 on their side: the same prompt (a part of scripts/data/demo_text.txt,
another for each turn), the whole call from its tokens to the answer's, nothing cached. The answers
must be equal. Needs build/tests/beam_probe. Of each turn: time passed, and processor time, for a
machine that others use too (with one thread: of several some wait by spinning). Ends with 1 where
an answer differs.
"""

import argparse
import os
import pathlib
import statistics
import sys
import time

import sentencepiece
import torch
from transformers import Gemma3ForCausalLM

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/worker/engine"), str(ROOT / "tests/worker/model")]
from beam_oracle import their_answer  # noqa: E402  (path set above)
from model_oracle import Probe  # noqa: E402  (path set above)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(ROOT / "models/gemma-3-270m"))
    for name, value in (("beams", 4), ("prompt", 128), ("tokens", 32), ("turns", 5),
                        ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def processor_s(process):
    """What the process has had so far, of all its threads."""
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(process, call):
    """The result, and how long it took: by the clock, and of the processor."""
    clock, processor = time.monotonic(), processor_s(process)
    result = call()
    return result, time.monotonic() - clock, processor_s(process) - processor


def main():
    args = parse()
    torch.set_num_threads(args.threads)
    pieces = sentencepiece.SentencePieceProcessor(
        model_file=str(pathlib.Path(args.model) / "tokenizer.model"))
    words = pieces.encode((ROOT / "scripts/data/demo_text.txt").read_text())
    model = Gemma3ForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    probe = Probe(ROOT / "build/tests/beam_probe", args.model, str(args.threads))
    search = (args.beams, args.tokens, 1.0, False)
    turns = []
    equal = True
    for turn in range(args.turns + 1):  # the first one warms both up
        begin = turn * args.prompt
        ids = [2] + words[begin:begin + args.prompt - 1]
        ours, *our_times = timed(probe.process.pid, lambda: probe.ask(
            ids=ids, beams=args.beams, max_new_tokens=args.tokens, ignore_eos=True))
        (theirs, *_), *their_times = timed(
            os.getpid(), lambda: their_answer(model, ids, search, []))
        assert ours["cached_tokens"] == 0
        equal &= ours["tokens"] == theirs
        if turn == 0:
            continue
        turns.append((*our_times, *their_times))
        print("turn {}: ours {:.2f} s ({:.2f} of the processor), theirs {:.2f} ({:.2f})".format(
            turn, *turns[-1]), flush=True)
    print(f"{args.beams} beams, {args.prompt} + {args.tokens} tokens, {args.threads} threads: "
          "medians ours {:.2f} s ({:.2f}), theirs {:.2f} ({:.2f})".format(
              *(statistics.median(column) for column in zip(*turns))))
    print("median of the turns' ratios {:.2f} (of the processor {:.2f}); answers {}".format(
        statistics.median(turn[2] / turn[0] for turn in turns),
        statistics.median(turn[3] / turn[1] for turn in turns), "equal" if equal else "DIFFER"))
    probe.close()
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
