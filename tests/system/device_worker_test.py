"""A worker on the emulated device and a worker on the CPU, with one store: equal bits, shared
prefixes.

RealModel takes minutes and is not run by ctest:
python tests/system/device_worker_test.py build/bin none RealModel
"""

import json
import unittest.mock

import system_support
from adapter_test import write_adapter
from system_support import CHUNK_TOKENS, ROOT, SystemTest, prompt

PROMPT_TOKENS = 140
NEW_TOKENS = 3


def projections_of(model):
    """Returns {name: (inputs, outputs)} of all projections of a model, for write_adapter."""
    config = json.loads((model / "config.json").read_text())
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries, keys = (config[heads] * config["head_dim"]
                     for heads in ("num_attention_heads", "num_key_value_heads"))
    return {f"{layer}.{name}": shape for layer in range(config["num_hidden_layers"])
            for name, shape in (("self_attn.q_proj", (hidden, queries)),
                                ("self_attn.k_proj", (hidden, keys)),
                                ("self_attn.v_proj", (hidden, keys)),
                                ("self_attn.o_proj", (queries, hidden)),
                                ("mlp.gate_proj", (hidden, inner)),
                                ("mlp.up_proj", (hidden, inner)),
                                ("mlp.down_proj", (inner, hidden)))}


class DeviceTest(SystemTest):

    def check(self, model, chunk, *flags, vocabulary_step=1, adapter=False):
        """One worker publishes a prompt. Another worker restores it from the store, and the first
        worker restores it from its pool."""
        store = self.cluster.store(self.folder / "data")
        options = {"pool_bytes": "64MiB", "chunk_tokens": chunk}
        chosen = []
        if adapter:
            folder = write_adapter(self.folder / "legal", 1, projections_of(model))
            flags += ("--adapter", f"legal={folder}")
            chosen = ["--adapter", "legal"]
        device = self.worker(model, store.address, "--device", "emulated", *flags, **options)
        cpu = self.worker(model, store.address, *flags, **options)

        def ask(worker, ids, *more):
            return self.cluster.generate(worker.address, ids, *chosen, *more,
                                         max_new_tokens=NEW_TOKENS)

        kept = (PROMPT_TOKENS - 1) // chunk * chunk
        for seed, (first, second) in enumerate([(device, cpu), (cpu, device)]):
            ids = [2] + [token * vocabulary_step for token in prompt(PROMPT_TOKENS, seed)[1:]]
            stored = ask(first, ids, "--wait-published")
            self.assertEqual(stored["cached_tokens"], 0)
            self.assertGreaterEqual(stored["published_tokens"], kept)
            self.expect_restored(ask(second, ids, "--cache", "read"), stored, kept, "host")
            self.expect_restored(ask(first, ids, "--cache", "read"), stored, kept, "worker")


class TinyModels(DeviceTest):

    def test_narrow_window_restores_exactly(self):
        self.check(self.model("narrow", dtype="bfloat16"), CHUNK_TOKENS)

    def test_wide_window_restores_exactly(self):
        self.check(self.model("wide", dtype="bfloat16"), CHUNK_TOKENS)

    def test_bf16_restores_exactly(self):
        self.check(self.model("narrow", dtype="bfloat16"), CHUNK_TOKENS, "--arithmetic", "bf16")

    def test_bf16_keys_and_values_restore_exactly(self):
        self.check(self.model("narrow", dtype="bfloat16"), CHUNK_TOKENS, "--kv-dtype", "bfloat16")

    def test_quantized_keys_and_values_restore_exactly(self):
        self.check(self.model("narrow", dtype="bfloat16"), CHUNK_TOKENS, "--weights", "q4_0",
                   "--kv-cache", "quantized", "--kv-quantization", "group=16")

    def test_adapter_restores_exactly(self):
        self.check(self.model("narrow", dtype="bfloat16"), CHUNK_TOKENS, adapter=True)

    def test_integers_restore_exactly(self):
        self.check(self.model("narrow", dtype="bfloat16"), CHUNK_TOKENS, "--weights", "q4_0")

    def test_unsupported_flags_stop_start(self):
        model, float32 = self.model("wide", dtype="bfloat16"), self.model("narrow")
        for said, path, *flags in (
                ("use --exactness auto", model, "--exactness", "exact"),
                ("arithmetic: int8 needs quantized weights", model, "--arithmetic", "int8"),
                ("leave --arithmetic at auto", model, "--weights", "q8_0", "--arithmetic",
                 "float32"),
                ("set --chunk-tokens to 256 or less", model, "--chunk-tokens", "512"),
                ("arithmetic: bf16 multiplies bfloat16 weights only", float32, "--arithmetic",
                 "bf16"),
                ("has values that bfloat16 cannot represent", float32)):
            with self.subTest(said):
                self.assertIn(said, self.fails_to_start("hearth-worker", "--model", path,
                                                        "--listen", "127.0.0.1:0", "--device",
                                                        "emulated", *flags))


class RealModel(DeviceTest):

    def setUp(self):
        super().setUp()
        # On a busy machine the self-test of the emulated device takes longer than other starts.
        longer = unittest.mock.patch("hearth_procs.START_TIMEOUT_S", 3600)
        longer.start()
        self.addCleanup(longer.stop)

    def test_gemma_270m_restores_exactly(self):
        self.check(ROOT / "models" / "gemma-3-270m", 128, vocabulary_step=1000)

    def test_gemma_270m_in_integers_restores_exactly(self):
        self.check(ROOT / "models" / "gemma-3-270m.gguf", 128, vocabulary_step=1000)

    def test_gemma_270m_in_bf16_restores_exactly(self):
        self.check(ROOT / "models" / "gemma-3-270m", 128, "--arithmetic", "bf16",
                   vocabulary_step=1000)

    def test_gemma_270m_with_adapter_restores_exactly(self):
        self.check(ROOT / "models" / "gemma-3-270m", 128, vocabulary_step=1000, adapter=True)


if __name__ == "__main__":
    system_support.main()
