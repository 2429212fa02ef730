"""Many questions about one context, as `hearthctl ask` asks them, beside the same prompts uncached.

    .venv/bin/python bench/worker/ask_context.py [--model DIR] [--questions 500] [--cold 10]
                                                 [--parallel 4] [--alone] [--json FILE]

A prefix of about 2,000 tokens (scripts/data/demo_text.txt), and endings of five kinds, each with a
number that no other has. By turns, --cold of them, as others may use the machine:
  cold     one of the prompts alone, with nothing read from a cache and nothing kept
  ask      a worker with a store goes on with its file of answers: so many more questions, the same
           prompt among them, whose tokens must be equal
Of each turn, how many times as soon the first token came: cold / the median of those asked.
  --alone  all of them again by a second worker, one at a time, after the context that the store
           has: equal tokens
No answer may hold a number of another prompt. Times are the worker's, from a request's turn to its
first token. Ends with 1 where an answer differs or the ratio is below 10.
"""

import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import figures  # noqa: E402  (path set above)
from hearth_procs import Cluster  # noqa: E402  (path set above)

CONTEXT_TOKENS = 2000
NEW_TOKENS = 8
MIN_RATIO = 10
KINDS = {
    "question": "\n\nQuestion {}: Whom did Alice follow?\nAnswer {}:",
    "summary": "\n\nNumber {}. In one sentence, the story so far:",
    "title": "\n\nA title for edition {} of this story:",
    "french": "\n\nNote {}. In French, the first sentence is:",
    "list": "\n\nList {}: the animals in the story are 1.",
}


def context_of(cluster, address, folder):
    """The beginning of the text that has CONTEXT_TOKENS tokens, cut between words."""
    words = (ROOT / "scripts/data/demo_text.txt").read_text().split(" ")
    low, high = 1, len(words)
    path = folder / "context.txt"
    while low < high:
        middle = (low + high + 1) // 2
        path.write_text(" ".join(words[:middle]))
        made = cluster.ctl("tokenize", "--worker", address, "--prompt-file", path)
        if len(made["token_ids"]) <= CONTEXT_TOKENS:
            low = middle
        else:
            high = middle - 1
    path.write_text(" ".join(words[:low]))
    return path


def questions_of(count):
    """Kinds by turns; the number is five digits, so that none is part of another's."""
    kinds = list(KINDS)
    lines = []
    for i in range(count):
        kind = kinds[i % len(kinds)]
        number = str(10007 + 173 * i)
        lines.append({"id": number, "kind": kind, "ending": KINDS[kind].format(number, number)})
    return lines


def ask(args, worker, context, questions, output, *flags):
    """Passes the command's output on to this program's own; returns the answers by id."""
    command = [f"{args.bin}/hearthctl", "ask", "--worker", worker.address, "--context", context,
               "--questions", questions, "--output", output, "--max-new-tokens", NEW_TOKENS,
               "--ignore-eos", *flags]
    subprocess.run([str(part) for part in command], check=True, stderr=subprocess.DEVNULL)
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    return {answer["id"]: answer for answer in answers}


def cold_answer(cluster, worker, context, line, folder):
    prompt = folder / "prompt.txt"
    prompt.write_text(context.read_text() + line["ending"])
    made = cluster.ctl("generate", "--worker", worker.address, "--prompt-file", prompt, "--cache",
                       "off", "--max-new-tokens", NEW_TOKENS, "--ignore-eos")
    assert made["cached_tokens"] == 0, made
    return made


def foreign(answers, numbers):
    """Answers that hold the number of another prompt."""
    return [answer["id"] for answer in answers.values()
            if set(re.findall(r"[0-9]{5,}", answer["answer"])) & (numbers - {answer["id"]})]


def machine():
    lscpu = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    name = re.search(r"Model name:\s*(.*)", lscpu)
    return {"cpu": name[1] if name else "unknown", "cores": os.cpu_count(),
            "load": [round(load, 1) for load in os.getloadavg()]}


def turns(args, cluster, worker, context, lines, folder):
    """Of each turn a cold answer, and those that were asked beside it; all answers at the end."""
    output, path = folder / "answers.jsonl", folder / "questions.jsonl"
    # The context is computed before anything is timed.
    path.write_text(json.dumps(lines[0]) + "\n")
    answers = ask(args, worker, context, path, output)
    cold, ratios = {}, []
    for turn in range(args.cold):
        end = 1 + (len(lines) - 1) * (turn + 1) // args.cold
        # Kinds by turns, too.
        line = lines[min(len(answers) + turn % len(KINDS), end - 1)]
        made = cold_answer(cluster, worker, context, line, folder)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines[:end]))
        before = set(answers)
        answers = ask(args, worker, context, path, output, "--parallel", args.parallel)
        cold[line["id"]] = made
        asked_ms = [answers[i]["ttft_ms"] for i in answers if i not in before]
        ratios.append(made["server"]["ttft_ms"] / statistics.median(asked_ms))
    return answers, cold, ratios


def run(args, cluster, folder):
    store = cluster.store(folder / "data")
    worker = cluster.worker(args.model, store.address)
    context = context_of(cluster, worker.address, folder)
    lines = questions_of(args.questions)
    answers, cold, ratios = turns(args, cluster, worker, context, lines, folder)
    differ = [i for i, made in cold.items() if made["token_ids"] != answers[i]["token_ids"]]
    if args.alone:
        second = cluster.worker(args.model, store.address)
        alone = ask(args, second, context, folder / "questions.jsonl", folder / "alone.jsonl",
                    "--parallel", 1)
        differ += [i for i, made in alone.items() if made["token_ids"] != answers[i]["token_ids"]]
    cold_ms = [made["server"]["ttft_ms"] for made in cold.values()]
    return {"machine": machine(), "questions": len(answers), "cold": len(cold),
            "prompt_tokens": sorted({a["prompt_tokens"] for a in answers.values()}),
            "cached_tokens": sorted({a["cached_tokens"] for a in answers.values()}),
            "cold_ttft_ms": [round(ms, 1) for ms in cold_ms],
            "ask_ttft_ms": round(statistics.median(a["ttft_ms"] for a in answers.values()), 1),
            "ratios": [round(ratio, 1) for ratio in ratios],
            "ratio": round(statistics.median(ratios), 1),
            "unanswered": len(lines) - len(answers), "differ": differ,
            "foreign": foreign(answers, {line["id"] for line in lines})}


def main():
    parser = figures.flags(__doc__)
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--cold", type=int, default=10)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--alone", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work, Cluster(args.bin, work) as cluster:
        found = run(args, cluster, pathlib.Path(work))
    print(json.dumps(found, indent=1))
    figures.write(args, found)
    wrong = found["unanswered"] or found["differ"] or found["foreign"]
    return 1 if wrong or found["ratio"] < MIN_RATIO else 0


if __name__ == "__main__":
    sys.exit(main())
