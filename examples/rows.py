"""One question about each row of a CSV file, after instructions that are computed once.

usage: rows.py WORKER INSTRUCTIONS ROWS.csv > answers.jsonl
"""

import csv
import json
import pathlib
import sys
import time

from hearth_cache import Worker


def main(address: str, instructions: str, rows: str) -> int:
    text = pathlib.Path(instructions).read_text(encoding="utf-8")
    with open(rows, encoding="utf-8", newline="") as file:
        asked = [", ".join(f"{name}: {value}" for name, value in row.items())
                 for row in csv.DictReader(file)]
    begin, cached, total, failed = time.monotonic(), 0, 0, 0
    with Worker(address) as worker:
        for done in worker.ask(text, asked, template="\n\nRow: {question}\nAnswer:",
                               max_new_tokens=32, stop=["\n"], parallel=8):
            if done.answer is None:
                failed += 1
                print(f"row {done.number + 1}: {done.error}", file=sys.stderr)
                continue
            cached += done.answer.cached_tokens
            total += done.answer.prompt_tokens
            print(json.dumps({"row": done.number + 1, "answer": done.answer.text.strip()}))
    print(f"{len(asked)} rows in {time.monotonic() - begin:.1f} s, {cached} of {total} tokens "
          "restored", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
