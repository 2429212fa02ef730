"""python -m hearth_cache.ask against a real store and workers: many questions about one context,
and a run that is continued."""

import json
import os
import subprocess
import sys

import python_support
from python_support import PACKAGE, PythonTest, prompt

CONTEXT_TOKENS = 150
QUESTIONS = 12
NEW_TOKENS = 4


class Ask(PythonTest):

    def setUp(self):
        super().setUp()
        self.store = self.cluster.store(self.folder / "data")
        self.made = self.model("irregular")
        self.context = prompt(CONTEXT_TOKENS, 1)
        self.endings = [[5 + i, 7, 9 + i % 3] for i in range(QUESTIONS)]
        self.context_file = self.folder / "context.txt"
        self.context_file.write_text(",".join(map(str, self.context)))
        self.answers = self.folder / "answers.jsonl"

    def start(self):
        return self.worker(self.made, self.store.address, pool_bytes="64MiB")

    def ask(self, worker, questions=QUESTIONS, *flags, code=0):
        """Runs the command; returns its report or, for an exit code other than 0, its stderr."""
        lines = [{"id": i, "kind": "even" if i % 2 == 0 else "odd", "token_ids": ending}
                 for i, ending in enumerate(self.endings[:questions])]
        path = self.folder / "questions.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        words = ["--worker", worker.address, "--context-token-ids", self.context_file,
                 "--questions", path, "--output", self.answers, "--max-new-tokens", NEW_TOKENS,
                 "--ignore-eos", "--json", "--wait", "60s", *flags]
        done = subprocess.run([sys.executable, "-B", "-m", "hearth_cache.ask", *map(str, words)],
                              env={**os.environ, "PYTHONPATH": str(PACKAGE)}, text=True,
                              capture_output=True, timeout=240, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return json.loads(done.stdout.splitlines()[-1]) if code == 0 else done.stderr

    def read(self):
        lines = self.answers.read_text().splitlines()
        return {answer["id"]: answer for answer in map(json.loads, lines)}

    def expect_cold_answers(self, worker, answers):
        for i, ending in enumerate(self.endings):
            alone = self.cluster.generate(worker.address, self.context + ending, "--cache", "off",
                                          max_new_tokens=NEW_TOKENS)
            self.assertEqual(alone["cached_tokens"], 0)
            self.assertEqual(answers[str(i)]["token_ids"], alone["token_ids"], i)

    def test_answers_equal_cold_generate(self):
        worker = self.start()
        report = self.ask(worker, QUESTIONS, "--parallel", 4)
        self.assertEqual(report["answered"], QUESTIONS)
        self.assertEqual(report["cached_tokens"], QUESTIONS * CONTEXT_TOKENS)
        self.assertEqual(report["computed_tokens"], QUESTIONS * 3)
        self.assertEqual(report["context"]["computed_tokens"], CONTEXT_TOKENS)
        self.expect_cold_answers(worker, self.read())
        # The store has only the context, because prompts of questions are not stored.
        longest = self.cluster.ctl("explain", "--worker", worker.address, "--token-ids",
                                   ",".join(map(str, self.context + self.endings[0] + [5] * 20)))
        self.assertLessEqual(longest["matched_tokens"], CONTEXT_TOKENS)

    def test_run_continues_at_other_worker(self):
        self.assertEqual(self.ask(self.start(), 5)["answered"], 5)
        whole = self.answers.read_bytes()
        # As if the program was killed while it wrote the fifth line.
        self.answers.write_bytes(whole[:-10])
        second = self.start()
        rest = self.ask(second)
        self.assertEqual(rest["answered_before"], 4)
        self.assertEqual(rest["answered"], QUESTIONS - 4)
        self.assertEqual(len(self.answers.read_text().splitlines()), QUESTIONS)
        self.expect_cold_answers(second, self.read())
        self.context_file.write_text("5,6,7")
        self.assertIn("another context", self.ask(second, code=1))

    def test_run_resumes_after_worker_loss(self):
        worker = self.start()
        worker.stop()
        self.ask(worker, 2, "--wait", "0", code=3)
        self.assertEqual(self.read(), {})
        self.assertEqual(self.ask(self.start(), 2)["answered"], 2)


if __name__ == "__main__":
    python_support.main()
