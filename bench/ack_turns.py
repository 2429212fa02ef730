"""Two builds of ack_bench, publish by publish in turns.

  bench/ack_turns.py OLD NEW FOLDER disk|sync MIB [PAIRS]

Both have a store in FOLDER, which must be absent; four times a new one, who is started first
alternating. Each pair is a publish by each, who goes first alternating; before each what waits
to be written is written. Prints the medians of both, the median of the pairs' ratios old / new
with the middle nine tenths that a bootstrap gives it, and the same of processor time. Above 1:
the new one is faster.
"""
import os
import random
import statistics
import subprocess
import sys

WARM_UPS = 5
ROUNDS = 4


def interval(values):
    draw = random.Random(1)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(1000))
    return f"{medians[50]:.3f} to {medians[949]:.3f}"


def round_of(programs, folder, level, mib, pairs):
    """Milliseconds of wall and processor time of each pair, in the order of `programs`."""
    os.mkdir(folder)
    children = [
        subprocess.Popen([program, f"{folder}/{place}", level, mib, "0"], text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for place, program in enumerate(programs)
    ]
    rows = []
    for turn in range(WARM_UPS + pairs):
        row = [None, None]
        for which in (0, 1) if turn % 2 else (1, 0):
            os.sync()
            children[which].stdin.write("\n")
            children[which].stdin.flush()
            row[which] = [float(word) for word in children[which].stdout.readline().split()]
        if turn >= WARM_UPS:
            rows.append(row)
    for child in children:
        child.stdin.close()
        child.wait()
    os.rmdir(folder)
    return rows


def main(old, new, folder, level, mib, pairs="200"):
    rows = []
    each = max(1, int(pairs) // ROUNDS)
    # Which of two is started first makes a difference of some percent.
    for turn in range(ROUNDS):
        if turn % 2 == 0:
            rows += round_of([old, new], folder, level, mib, each)
        else:
            rows += [row[::-1] for row in round_of([new, old], folder, level, mib, each)]
    for place, what in ((0, "wall"), (1, "processor")):
        ours = [row[1][place] for row in rows]
        theirs = [row[0][place] for row in rows]
        ratios = [a / b for a, b in zip(theirs, ours)]
        print(f"{level} {mib} MiB {what}: old {statistics.median(theirs):.2f} ms, new "
              f"{statistics.median(ours):.2f} ms; pairs old / new: {statistics.median(ratios):.3f} "
              f"({interval(ratios)})")


main(*sys.argv[1:])
