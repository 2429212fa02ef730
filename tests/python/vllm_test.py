"""HearthConnector within vLLM itself, on a tiny model: each engine is a process.

In the environment that `scripts/clients.sh vllm` makes; without it this is shown as skipped.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

import python_support
from python_support import PACKAGE, ROOT, SKIPPED, PythonTest, prompt

from hearth_cache import Store

CLIENTS = pathlib.Path(os.environ.get("HEARTH_CLIENTS", ROOT / ".clients"))
PYTHON = CLIENTS / "vllm" / "bin" / "python"
GEOMETRY = "irregular"  # heads of 32, which vLLM computes on CPUs
BLOCK, NEW_TOKENS, TOLERANCE = 128, 8, 1e-3
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0-0",
               "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_HOST_IP": "127.0.0.1",
               "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
ENGINE = """
import json, sys
said, sys.stdout = sys.stdout, sys.stderr
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
told = json.loads(sys.argv[1])
connector = {} if not told["store"] else {"kv_transfer_config": KVTransferConfig(
    kv_connector="HearthConnector", kv_connector_module_path="hearth_cache.vllm",
    kv_role="kv_both", kv_load_failure_policy=told.get("policy", "recompute"),
    kv_connector_extra_config={"store": told["store"]})}
engine = LLM(told["model"], skip_tokenizer_init=True, dtype=told.get("dtype", "float32"),
             enforce_eager=True, max_model_len=2048, **told["options"], **connector)
answers = []
for seed in told.get("seeds", [None]):
    sampling = SamplingParams(max_tokens=told["new"], ignore_eos=True, detokenize=False, logprobs=0,
                              temperature=0 if seed is None else 0.8, seed=seed)
    for done in engine.generate([{"prompt_token_ids": ids} for ids in told["prompts"]], sampling,
                                use_tqdm=False):
        made = done.outputs[0]
        answers.append([list(made.token_ids), done.num_cached_tokens, [
            each[token].logprob for each, token in zip(made.logprobs, made.token_ids)]])
engine.llm_engine.engine_core.shutdown()
print(json.dumps(answers), file=said)
"""


class Engines(PythonTest):
    def setUp(self):
        super().setUp()
        self.node = self.cluster.store(self.folder / "data")
        self.store = Store(self.node.address)
        self.addCleanup(self.store.close)
        self.path = self.model(GEOMETRY)

    def run_vllm(self, *argv):
        return subprocess.run(
            [str(PYTHON), "-B", *map(str, argv)], capture_output=True, text=True, check=False,
            cwd=self.folder, env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(PACKAGE)})

    def engine(self, prompts, store="", options=None, **more):
        done = self.run_vllm("-c", ENGINE, json.dumps({
            "model": str(self.path), "prompts": prompts, "store": store, "new": NEW_TOKENS,
            "options": options or {}, **more}))
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        return json.loads(done.stdout.splitlines()[-1])

    def expect_same(self, answers, others):
        for (ids, _, logprobs), (other_ids, _, other_logprobs) in zip(answers, others, strict=True):
            self.assertEqual(ids, other_ids)
            for one, other in zip(logprobs, other_logprobs, strict=True):
                self.assertAlmostEqual(one, other, delta=TOLERANCE)

    def test_another_process_restores_and_answers_as_vllm_alone(self):
        shared = prompt(300, 1)
        prompts = [shared + prompt(60 + 50 * i, 2 + i) for i in range(4)]
        # Prefills in chunks (which vLLM refuses with seeds on a CPU), too few blocks for all at a
        # time, and each block computed anew.
        options = {"max_num_batched_tokens": 192, "num_gpu_blocks_override": 24,
                   "enable_prefix_caching": False, "max_num_seqs": 4}
        alone = self.engine(prompts, options=options)
        first = self.engine(prompts, self.node.address, options)
        self.expect_same(first, alone)
        kept = {one.tokens for one in self.store.list()}
        self.assertLessEqual({(len(ids) - 1) // BLOCK * BLOCK for ids in prompts}, kept)
        second = self.engine(prompts, self.node.address, options)
        self.expect_same(second, alone)
        self.assertEqual([answer[1] for answer in second],
                         [(len(ids) - 1) // BLOCK * BLOCK for ids in prompts])
        other = self.engine(prompts[:1], self.node.address, dtype="bfloat16")
        self.assertEqual(other[0][1], 0, "an engine that differs shares nothing")

    def test_a_store_that_is_gone_costs_no_answer(self):
        prompts = [prompt(200, 9)]
        address = self.node.address
        self.node.stop()
        self.expect_same(self.engine(prompts, address, seeds=[None, 7]),
                         self.engine(prompts, seeds=[None, 7]))

    def test_a_policy_that_fails_requests_is_refused(self):
        done = self.run_vllm("-c", ENGINE, json.dumps({
            "model": str(self.path), "prompts": [], "store": self.node.address, "options": {},
            "policy": "fail"}))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn('kv_load_failure_policy must be "recompute"', done.stderr)

    def test_the_example(self):
        ids = ",".join(map(str, prompt(300, 3)))
        done = self.run_vllm(ROOT / "examples" / "vllm_pair.py", self.path, self.node.address, ids)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        self.assertEqual(re.findall(r"(\w+): (\d+) of 300 tokens", done.stdout),
                         [("first", "0"), ("second", "256")])
        first, second = re.findall(r"^\[.*\]$", done.stdout, re.M)
        self.assertEqual(first, second)


if __name__ == "__main__":
    if not (CLIENTS / "vllm" / "installed").is_file():
        print("skipped, vLLM is not installed: scripts/clients.sh vllm")
        sys.exit(SKIPPED)
    python_support.main()
