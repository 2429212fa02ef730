"""Shared by tests of PrefixCache: a store, a tiny model with sliding windows, and answers of
transformers without a cache."""

from python_support import LONG_S, PythonTest

import hearth_cache.transformers
import torch
import transformers
from hearth_cache import Store, _engines
from hearth_cache.transformers import PrefixCache
from transformers import DynamicCache

transformers.utils.logging.disable_progress_bar()
# On a busy machine, a load or save may exceed the usual deadline; the prompt would then be
# computed.
_engines.LOAD_DEADLINE_S = hearth_cache.transformers.SAVE_DEADLINE_S = LONG_S

CHUNK = 16
NEW_TOKENS = 8
TOLERANCE = 5e-5


class TransformersTest(PythonTest):
    def setUp(self):
        super().setUp()
        torch.set_num_threads(1)
        self.node = self.cluster.store(self.folder / "data")
        self.store = Store(self.node.address)
        self.addCleanup(self.store.close)
        self.made = self.model()  # layers lllg, window 70
        self.loaded = self.load_model()
        self.prefixes = self.prefixes_of(self.loaded)

    def load_model(self, dtype=torch.float32):
        return transformers.AutoModelForCausalLM.from_pretrained(self.made, dtype=dtype).eval()

    def prefixes_of(self, model, **options):
        made = PrefixCache(model, self.node.address, **{"chunk_tokens": CHUNK, **options})
        self.addCleanup(made.close)
        return made

    def next_logits(self, ids, cache=None):
        cache = DynamicCache(config=self.loaded.config) if cache is None else cache
        with torch.inference_mode():
            return self.loaded(torch.tensor([ids[cache.get_seq_length():]]),
                               past_key_values=cache, use_cache=True).logits[0, -1]

    def expect_cold(self, ids, cache):
        difference = (self.next_logits(ids, cache) - self.next_logits(ids)).abs().max().item()
        self.assertLess(difference, TOLERANCE)

    def greedy(self, generate, ids, **options):
        return generate(torch.tensor([ids]), max_new_tokens=NEW_TOKENS, do_sample=False,
                        eos_token_id=None, pad_token_id=0, **options)[0].tolist()
