"""PrefixCache against transformers, on a tiny model with sliding windows."""

import json
import os
import subprocess
import sys
import unittest.mock

import python_support
from python_support import PACKAGE, prompt
from transformers_support import CHUNK, TOLERANCE, TransformersTest

import torch
import transformers
from hearth_cache import Unavailable, _engines

SECOND = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch, transformers
from hearth_cache import _engines
from hearth_cache.transformers import PrefixCache
_engines.LOAD_DEADLINE_S = 120.0
torch.set_num_threads(1)
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=torch.float32)
with PrefixCache(model, sys.argv[3], chunk_tokens=16) as prefixes:
    ids = json.loads(sys.argv[4])
    cache = prefixes.load(ids)
    restored = cache.get_seq_length()
    with torch.inference_mode():
        logits = model(torch.tensor([ids[restored:]]), past_key_values=cache).logits[0, -1]
    print(json.dumps({"restored": restored, "logits": logits.tolist()}))
"""


class Prefixes(TransformersTest):
    def test_prefill_restores_exact_state(self):
        # Prompt lengths below, at and above the window (70); on chunk boundaries and between them.
        for tokens in (5, 16, 40, 69, 70, 71, 96, 133):
            ids = prompt(tokens, tokens)
            computed = self.prefixes.prefill(ids)
            self.assertEqual(computed.get_seq_length(), tokens)
            more = ids + [7, 8, 9]
            restored = self.prefixes.load(more)
            self.assertEqual(restored.get_seq_length(), tokens)
            for one, other in zip(restored.layers, computed.layers, strict=True):
                self.assertTrue(torch.equal(one.keys, other.keys))
                self.assertTrue(torch.equal(one.values, other.values))
                self.assertEqual(one.get_seq_length(), tokens)
            self.expect_cold(more, restored)
            self.expect_cold(more, computed)

    def test_prefill_continues_from_stored_prefix(self):
        ids = prompt(250, 1)
        for tokens in (100, 110, 180, 250):
            cache = self.prefixes.prefill(ids[:tokens])
            self.expect_cold(ids[:tokens] + [5], cache)
            point = self.prefixes.load(ids[:tokens] + [5])
            self.assertEqual(point.get_seq_length(), tokens)
            self.expect_cold(ids[:tokens] + [5], point)

    def test_longer_prefix_is_saved_after_restore(self):
        # A restore at 128 tokens needs another first chunk of the window than a restore at 134.
        ids = prompt(140, 11)
        self.prefixes.prefill(ids[:134])
        self.expect_cold(ids[:137] + [5], self.prefixes.prefill(ids[:137]))
        self.assertEqual(self.prefixes.load(ids[:138]).get_seq_length(), 137)

    def test_repeated_prefill_extends_ttl(self):
        ids = prompt(96, 12)
        self.prefixes.prefill(ids, ttl_s=500)
        self.prefixes.prefill(ids, ttl_s=5000)
        self.assertGreater(max(one.expires_in_s for one in self.store.list()), 4000)

    def test_extended_cache_is_saved(self):
        ids = prompt(230, 13)
        self.prefixes.prefill(ids[:150])
        cache = self.prefixes.load(ids[:151])
        cache.activate_past_recording()
        self.next_logits(ids, cache)
        self.assertIn(230, self.prefixes.save(cache, ids).boundaries)
        self.expect_cold(ids + [5], self.prefixes.load(ids + [5]))

    def test_other_process_restores_prefix(self):
        ids = prompt(150, 2)
        self.prefixes.prefill(ids)
        done = subprocess.run(
            [sys.executable, "-B", "-c", SECOND, str(PACKAGE), str(self.made), self.node.address,
             json.dumps(ids + [9])], capture_output=True, text=True, check=False,
            env=dict(os.environ))
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        said = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual(said["restored"], 150)
        cold = self.next_logits(ids + [9])
        self.assertLess((torch.tensor(said["logits"]) - cold).abs().max().item(), TOLERANCE)

    def test_store_holds_only_window_tails(self):
        self.prefixes.prefill(prompt(192, 3))
        window, layers = self.loaded.config.sliding_window, self.prefixes.layout.layer_types
        rows = layers.count("g") * 192 + layers.count("l") * (window - 1)
        row_bytes = self.prefixes.layout.slice_bytes(1)
        self.assertLess(self.store.list()[0].bytes, (rows + 3 * CHUNK) * row_bytes)

    def test_generate_answers_equal_transformers(self):
        ids = prompt(150, 4)
        cold = self.greedy(self.loaded.generate, ids)
        self.assertEqual(self.greedy(self.prefixes.generate, ids), cold)
        self.prefixes.flush()
        self.assertEqual(self.store.list()[0].tokens, 144)
        self.assertEqual(self.greedy(self.prefixes.generate, ids), cold)
        self.assertEqual(self.store.list()[0].hits, 1)
        longer = cold + prompt(40, 5)
        self.assertEqual(self.greedy(self.prefixes.generate, longer),
                         self.greedy(self.loaded.generate, longer))
        made = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, 150)}
        self.assertEqual(self.prefixes.generate(made, max_new_tokens=1).shape, (1, 151))

    def test_unrecorded_cache_is_not_saved(self):
        ids = prompt(130, 6)
        cache = self.prefixes.load(ids)
        self.next_logits(ids, cache)
        with self.assertRaisesRegex(ValueError, "activate_past_recording"):
            self.prefixes.save(cache, ids)
        recorded = self.prefixes.load(ids)
        recorded.activate_past_recording()
        self.next_logits(ids, recorded)
        self.assertEqual(list(self.prefixes.save(recorded, ids).boundaries), [128, 130])
        recorded.crop(0)
        self.expect_cold(ids + [5], self.prefixes.load(ids + [5]))
        short = self.prefixes.load(ids[:50])
        # The prompt is shorter than the window, so no row was dropped.
        self.next_logits(ids[:50], short)
        self.assertIn(50, self.prefixes.save(short, ids[:50]).boundaries)
        with self.assertRaisesRegex(ValueError, "130 tokens, but 129"):
            self.prefixes.save(recorded, ids[:129])

    def test_differing_models_share_nothing(self):
        ids = prompt(100, 7)
        self.prefixes.prefill(ids)

        def found_by(model, **options):
            other = self.prefixes_of(model, **options)
            told = self.store.explain(other._prefix(ids))
            return (other.load(ids).get_seq_length(),
                    [one.field for one in told.other_fingerprints])

        self.assertEqual(found_by(self.loaded), (96, []))
        self.assertEqual(found_by(self.load_model(torch.bfloat16)),
                         (0, ["kv_dtype", "weights_xxh3"]))
        eager = self.load_model()
        eager.set_attn_implementation("eager")
        self.assertEqual(found_by(eager), (0, ["attention"]))
        torch.set_num_threads(2)
        self.assertEqual(found_by(self.loaded), (0, ["threads"]))
        torch.set_num_threads(1)
        self.assertEqual(found_by(self.loaded, chunk_tokens=32), (0, ["chunk_tokens"]))
        with unittest.mock.patch.object(transformers, "__version__", "5.0.0"):
            self.assertEqual(found_by(self.loaded), (0, ["transformers"]))
        with unittest.mock.patch("torch.backends.cpu.get_cpu_capability", lambda: "another"):
            self.assertEqual(found_by(self.loaded), (0, ["capability"]))
        changed = self.load_model()
        with torch.no_grad():
            changed.model.layers[0].mlp.up_proj.weight[0, 0] += 1e-3
        self.assertEqual(found_by(changed), (0, ["weights_xxh3"]))

    def test_bfloat16_restores_exact_bits(self):
        half = self.prefixes_of(self.load_model(torch.bfloat16))
        ids = prompt(100, 8)
        computed, restored = half.prefill(ids), half.load(ids + [5])
        for one, other in zip(restored.layers, computed.layers, strict=True):
            self.assertTrue(torch.equal(one.keys, other.keys))

    def test_answers_survive_store_loss(self):
        ids = prompt(100, 9)
        cold = self.greedy(self.loaded.generate, ids)
        self.node.stop()
        # The first pause lasts longer than the test.
        with unittest.mock.patch.object(_engines, "QUIET_S", (3600.0, 3600.0)):
            prefixes = self.prefixes_of(self.loaded)
        with self.assertLogs("hearth_cache", "WARNING"):
            self.assertEqual(self.greedy(prefixes.generate, ids), cold)
            prefixes.flush()
        failures = prefixes.failures
        self.assertEqual(self.greedy(prefixes.generate, ids[:-1] + [9])[:99], ids[:-1])
        self.assertLessEqual(prefixes.failures, failures + 1, "it is left alone")
        with self.assertRaises(Unavailable):
            prefixes.prefill(prompt(50, 10))


if __name__ == "__main__":
    python_support.main()
