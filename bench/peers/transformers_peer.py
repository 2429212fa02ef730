"""The peer of the benchmarks: Hugging Face transformers on the same weights, in this process.

Float32, DynamicCache, scaled-dot-product attention: what `generate` uses. QUIET_S of sleep between
the two sides lets one side's spinning threads go to sleep before the other is timed.
"""

import copy
import os
import time

import torch

QUIET_S = 0.3


class Transformers:
    """One model, one thread per core."""

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
        """One forward pass over the whole prompt. Returns ms, the next token and the cache."""
        cache = self.new_cache()
        begin = time.perf_counter()
        token = self._forward(ids, cache)
        return (time.perf_counter() - begin) * 1e3, token, cache

    @torch.inference_mode()
    def warm(self, cache, ending):
        """A deep copy of a prefilled cache, then the new tokens. Returns ms and the next token."""
        begin = time.perf_counter()
        token = self._forward(ending, copy.deepcopy(cache))
        return (time.perf_counter() - begin) * 1e3, token

    @torch.inference_mode()
    def decode(self, cache, token, count):
        """`count` greedy tokens, one at a time. Returns ms per token and the tokens."""
        tokens = []
        begin = time.perf_counter()
        for _ in range(count):
            token = self._forward([token], cache)
            tokens.append(token)
        return (time.perf_counter() - begin) * 1e3 / count, tokens
