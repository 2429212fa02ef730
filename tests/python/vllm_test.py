"""HearthConnector in vLLM, on a tiny model. Each engine is a process.

Runs in the environment of `scripts/clients.sh vllm`; without it, the test is skipped. To use
another Gemma model, set HEARTH_VLLM_MODEL to its folder, and HEARTH_VLLM_BLOCKS to a number of
blocks that is too small for all requests.
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
GEOMETRY = "irregular"  # a model with head_dim 32, which vLLM supports on CPUs
BLOCK, NEW_TOKENS, TOLERANCE = 128, 8, 1e-3
MODEL = os.environ.get("HEARTH_VLLM_MODEL")
# Number of blocks; a prompt of 800 tokens needs 11.
FEW_BLOCKS = int(os.environ.get("HEARTH_VLLM_BLOCKS", 18))
MORE_TOKENS = 64  # generated tokens; every second prompt then needs a new block
# Uses one thread, because two threads on one core would spin at their barriers.
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0-0",
               "OMP_NUM_THREADS": "1",
               "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_HOST_IP": "127.0.0.1",
               "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
ENGINE = """
import json, sys
said, sys.stdout = sys.stdout, sys.stderr
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
told = json.load(sys.stdin)
connector = {} if not told["store"] else {"kv_transfer_config": KVTransferConfig(
    kv_connector="HearthConnector", kv_connector_module_path="hearth_cache.vllm",
    kv_role="kv_both", kv_load_failure_policy=told.get("policy", "recompute"),
    kv_connector_extra_config={"store": told["store"]})}
engine = LLM(told["model"], skip_tokenizer_init=True, enforce_eager=True, disable_log_stats=False,
             **{"dtype": "float32", "max_model_len": 2048, **told["options"]}, **connector)
answers, fields = [], []
from vllm.distributed.kv_transfer import get_kv_transfer_group
if told.get("explain"):
    worker = get_kv_transfer_group()
    explained = worker._store.explain(worker._prefix_of(0, told["prompts"][0], ""))
    fields = [one.field for one in explained.other_fingerprints]
def change(worker, by):
    for one in worker.model_runner.model.parameters():
        if one.dim() == 1:  # of norms: a kernel may have packed copies of matrices
            one.data.add_(by)
for seed in told.get("seeds", [None]) + [{"by": by} for by in told.get("changes", [])]:
    if isinstance(seed, dict):
        get_kv_transfer_group()._mover.flush()  # else saves under way are left out
        if seed["by"]:
            assert get_kv_transfer_group().reset_cache() is False  # a worker cannot
            engine.collective_rpc(change, args=(seed["by"],))
            assert engine.reset_prefix_cache(reset_connector=True)
        told["prompts"], seed = told["later"], None
    sampling = SamplingParams(max_tokens=told["new"], ignore_eos=True, detokenize=False, logprobs=0,
                              temperature=0 if seed is None else 0.8, seed=seed)
    for done in engine.generate([{"prompt_token_ids": ids} for ids in told["prompts"]], sampling,
                                use_tqdm=False):
        made = done.outputs[0]
        answers.append([list(made.token_ids), done.num_cached_tokens, [
            each[token].logprob for each, token in zip(made.logprobs, made.token_ids)]])
preempted = sum(one.value for one in engine.get_metrics() if one.name == "vllm:num_preemptions")
engine.llm_engine.engine_core.shutdown()
print(json.dumps({"answers": answers, "preempted": preempted, "fields": fields}), file=said)
"""


class Engines(PythonTest):
    def setUp(self):
        super().setUp()
        self.node = self.cluster.store(self.folder / "data")
        self.store = Store(self.node.address)
        self.addCleanup(self.store.close)
        self.apart = 0
        self.path = MODEL or self.model(GEOMETRY)

    def run_vllm(self, *argv, told=None):
        return subprocess.run(
            [str(PYTHON), "-B", *map(str, argv)], capture_output=True, text=True, check=False,
            input=json.dumps(told), cwd=self.folder,
            env={**ENVIRONMENT, **os.environ, "PYTHONPATH": str(PACKAGE)})

    def run_engine(self, prompts, store="", options=None, **more):
        """Runs an engine; returns its answers, the number of preemptions, and the fields in which
        its fingerprint differs from stored ones."""
        done = self.run_vllm("-c", ENGINE, told={
            "model": str(self.path), "prompts": prompts, "store": store, "new": NEW_TOKENS,
            "options": options or {}, **more})
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        return json.loads(done.stdout.splitlines()[-1])

    def engine(self, *arguments, **more):
        return self.run_engine(*arguments, **more)["answers"]

    def expect_same(self, answers, others):
        for (ids, _, logprobs), (other_ids, _, other_logprobs) in zip(answers, others, strict=True):
            self.assertEqual(ids, other_ids)
            for one, other in zip(logprobs, other_logprobs, strict=True):
                self.assertAlmostEqual(one, other, delta=TOLERANCE)
                self.apart = max(self.apart, abs(one - other))

    def test_second_engine_restores_same_answers(self):
        shared = prompt(300, 1)
        prompts = [shared + prompt(60 + 50 * i, 2 + i) for i in range(4)]
        # Chunked prefill (on a CPU, vLLM does not support it with seeds), too few blocks to run all
        # requests at the same time, and vLLM's own prefix cache off.
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

    def test_differing_engines_share_nothing(self):
        prompts = [prompt(300, 1)]
        self.engine(prompts, self.node.address)
        for options, field in (({"dtype": "bfloat16"}, "dtype"),
                               ({"block_size": 64}, "chunk_tokens")):
            other = self.run_engine(prompts, self.node.address, options, explain=True)
            self.assertEqual(other["answers"][0][1], 0)
            self.assertIn(field, other["fields"])

    def test_weight_change_starts_cold(self):
        before, after = prompt(300, 1), prompt(300, 2)
        options = {"enable_prefix_caching": False}
        alone = self.engine([before, after], options=options)
        trained = self.engine([before], self.node.address, options, later=[before, after],
                              changes=[0.25, 0, -0.25])
        first, changed, again, back = trained[:1], trained[1:3], trained[3:5], trained[5:]
        self.expect_same(first, alone[:1])
        self.assertEqual([answer[1] for answer in changed], [0, 0])
        self.assertNotEqual(changed[0][2], alone[0][2], "the change reached the model")
        self.assertEqual([answer[1] for answer in again], [256, 256], "of this epoch")
        self.expect_same(again, changed)
        # The weights equal the first ones, but a new epoch cannot know that.
        self.assertEqual([answer[1] for answer in back], [0, 0])
        self.expect_same(back, alone)
        unchanged = self.engine([before, after], self.node.address, options)
        self.assertEqual([answer[1] for answer in unchanged], [256, 0])
        self.expect_same(unchanged, alone)

    def test_preempted_requests_keep_their_answers(self):
        documents = [prompt(300 + 97 * i, 100 + i) for i in range(5)]
        prompts = [documents[i % 5] + prompt(20 + 7 * i % 120, 1000 + i)[1:] for i in range(50)]
        options = {"max_num_batched_tokens": 256, "max_num_seqs": 8, "max_model_len": 1024,
                   "num_gpu_blocks_override": FEW_BLOCKS, "enable_prefix_caching": False}
        runs = [self.run_engine(prompts, store, options, new=MORE_TOKENS)
                for store in ("", self.node.address, self.node.address)]
        for run in runs:
            self.expect_same(run["answers"], runs[0]["answers"])
            self.assertGreater(run["preempted"], 0)
            restored = sum(answer[1] for answer in run["answers"])
            print(f"{run['preempted']} preempted, {restored} tokens restored, logprobs "
                  f"{self.apart:.1e} apart", file=sys.stderr)
        self.assertGreater(restored, 0)

    def test_answers_survive_store_loss(self):
        prompts = [prompt(200, 9)]
        address = self.node.address
        self.node.stop()
        self.expect_same(self.engine(prompts, address, seeds=[None, 7]),
                         self.engine(prompts, seeds=[None, 7]))

    def test_fail_policy_is_refused(self):
        done = self.run_vllm("-c", ENGINE, told={
            "model": str(self.path), "prompts": [], "store": self.node.address, "options": {},
            "policy": "fail"})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn('kv_load_failure_policy must be "recompute"', done.stderr)

    def test_vllm_example_restores_prompt(self):
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
    if MODEL:
        python_support.system_support.VOCABULARY = 262_000
    python_support.main()
