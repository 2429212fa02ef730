"""Runs each program of examples/ on a tiny model, and checks the restored tokens that it prints.
Runs the examples of docs/python.md as they are on the page."""

import json
import os
import re
import subprocess
import sys

import python_support
from hearth_procs import make_certificate
from python_support import PACKAGE, ROOT, PythonTest, prompt

EXAMPLES = ROOT / "examples"
LINES_MAX = 60
RUN = {"rag.py", "agent.py", "rows.py", "warm_up.py", "transformers_generate.py",
       "vllm_pair.py"}  # vllm_test.py runs vllm_pair.py
TEXT = "the lighthouse keeper writes down each ship that passes, and the hour. " * 4


class Examples(PythonTest):
    def setUp(self):
        super().setUp()
        self.store = self.cluster.store(self.folder / "data")

    def start_worker(self):
        return self.worker(self.text_model(context_tokens=8192), self.store.address,
                           pool_bytes=16 << 20).address

    def run_python(self, *arguments):
        """Runs Python with these arguments; returns its stdout and stderr."""
        done = subprocess.run(
            [sys.executable, "-B", *map(str, arguments)], cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(PACKAGE)}, capture_output=True, text=True,
            check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        return done.stdout + done.stderr

    def run_example(self, name, *arguments):
        """Runs an example; returns its stdout and stderr."""
        return self.run_python(EXAMPLES / name, *arguments)

    def restored(self, said):
        return [tuple(map(int, pair)) for pair in re.findall(r"(\d+) of (\d+) tokens", said)]

    def test_all_examples_are_short_and_tested(self):
        found = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
        self.assertEqual(set(found), RUN)
        self.assertLess(max(found.values()), LINES_MAX)

    def test_rag_example_restores_document(self):
        (self.folder / "document").write_text(TEXT)
        said = self.restored(self.run_example(
            "rag.py", self.start_worker(), "document", "which ship?", "and then?", "and when?"))
        self.assertEqual(len(said), 3)
        self.assertEqual(said[0][0], 0)
        for (_, before), (cached, _) in zip(said, said[1:]):
            self.assertGreaterEqual(cached, before, "a turn restores the one before it")

    def test_agent_example_restores_turns(self):
        said = self.restored(self.run_example("agent.py", self.start_worker(), "what day is it?"))
        self.assertEqual(len(said), 3)
        for (_, before), (cached, _) in zip(said, said[1:]):
            self.assertGreaterEqual(cached, before - 1)

    def test_rows_example_shares_instructions(self):
        (self.folder / "instructions").write_text(TEXT)
        (self.folder / "rows.csv").write_text("ship,hour\n" + "".join(
            f"ship {i},{i}\n" for i in range(20)))
        said = self.run_example("rows.py", self.start_worker(), "instructions", "rows.csv")
        rows = [json.loads(line)["row"] for line in said.splitlines() if line.startswith("{")]
        self.assertEqual(sorted(rows), list(range(1, 21)))
        (cached, total), = self.restored(said)
        self.assertGreater(cached, total // 2)

    def test_warm_up_example_publishes_files(self):
        (self.folder / "first").write_text(TEXT)
        (self.folder / "second").write_text("another " + TEXT)
        said = self.run_example("warm_up.py", self.start_worker(), self.store.address, 2, "first",
                                "second")
        self.assertEqual(len(re.findall(r"tokens, .* MB as", said)), 2)

    def test_transformers_example_restores_prompt(self):
        ids = ",".join(map(str, prompt(300, 1)))
        model = self.model()
        twice = [self.run_example("transformers_generate.py", model, self.store.address, ids)
                 for _ in range(2)]
        self.assertEqual([self.restored(said)[0] for said in twice], [(0, 300), (256, 300)])
        tokens = [re.findall(r"^\[.*\]$", said, re.M) for said in twice]
        self.assertEqual(tokens[0], tokens[1])

    def test_page_examples_run_as_pasted(self):
        """Replaces only the addresses of the worker and of the store."""
        here = {"127.0.0.1:7070": self.start_worker(), "127.0.0.1:7080": self.store.address}
        make_certificate(self.folder, "ca")  # the last example names ca.pem and token
        (self.folder / "token").write_text("secret")
        page = (ROOT / "docs" / "python.md").read_text()
        said = []
        for program in re.findall(r"```python\n(.*?)```", page, re.S):
            for shown, address in here.items():
                program = program.replace(shown, address)
            said.append(self.run_python("-c", program))
        self.assertEqual(len(said), 4)
        self.assertRegex(said[0], r"\d+ of \d+ tokens restored\n$")
        self.assertEqual(said[1:], ["", f"2048 {2 * 128 * 256 * 4}\n", ""])


if __name__ == "__main__":
    python_support.main()
