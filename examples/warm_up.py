"""Keeps prompts warm, as a step of a deployment: computes prompts that are not stored, and extends
the time to live of the others. Exit code 1: a prompt could not be kept.

usage: warm_up.py WORKER STORE HOURS PROMPT_FILE...
"""

import pathlib
import sys

from hearth_cache import HearthError, Worker


def main(worker_address: str, store_address: str, hours: float, files: list[str]) -> int:
    failed = 0
    with Worker(worker_address, store=store_address, retries=20) as worker:
        for name in files:
            text = pathlib.Path(name).read_text(encoding="utf-8")
            try:
                kept = worker.caches.create(text, ttl_s=round(3600 * hours), durability="disk")
            except HearthError as error:
                failed += 1
                print(f"{name}: not kept: {error}", file=sys.stderr)
                continue
            print(f"{name}: {kept.tokens} tokens, {kept.bytes / 1e6:.1f} MB as {kept.id[:12]}")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4:]))
