"""Hugging Face transformers on the same weights, in this process, for comparison in benchmarks.

Float32, DynamicCache, scaled-dot-product attention, as in `generate`. Sleep QUIET_S before timing
the other engine, so that the spinning threads of this engine are asleep.
"""

import copy
import os
import time

import torch

QUIET_S = 0.3


class Transformers:
    """One model; one thread for each core."""

    def __init__(self, model_dir):
        from transformers import Gemma3ForCausalLM
        torch.set_num_threads(os.cpu_count())
        self.model = Gemma3ForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()

    def _forward(self, ids, cache):
        out = self.model(torch.tensor([ids]), past_key_values=cache, use_cache=True,
                         logits_to_keep=1)
        return int(out.logits[0, -1].argmax())

    def new_cache(self):
        from transformers import DynamicCache
        return DynamicCache(config=self.model.config)

    @torch.inference_mode()
    def prefill(self, ids):
        """Runs one forward pass over the prompt. Returns (ms, next token, cache)."""
        cache = self.new_cache()
        begin = time.perf_counter()
        token = self._forward(ids, cache)
        return (time.perf_counter() - begin) * 1e3, token, cache

    @torch.inference_mode()
    def warm(self, cache, ending):
        """Copies a prefilled cache, then computes the new tokens. Returns (ms, next token)."""
        begin = time.perf_counter()
        token = self._forward(ending, copy.deepcopy(cache))
        return (time.perf_counter() - begin) * 1e3, token

    @torch.inference_mode()
    def decode(self, cache, token, count):
        """Generates `count` greedy tokens, one at a time. Returns (ms per token, tokens)."""
        tokens = []
        begin = time.perf_counter()
        for _ in range(count):
            token = self._forward([token], cache)
            tokens.append(token)
        return (time.perf_counter() - begin) * 1e3 / count, tokens
