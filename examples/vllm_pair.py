"""Two processes of vLLM with one store: the second restores what the first has computed.

usage: vllm_pair.py MODEL STORE PROMPT_IDS   (token ids, with commas between them)
"""

import multiprocessing
import sys
from typing import Any


def answer(name: str, path: str, store_address: str, ids: list[int]) -> None:
    import vllm
    from vllm.config import KVTransferConfig

    connector = KVTransferConfig(
        kv_connector="HearthConnector", kv_connector_module_path="hearth_cache.vllm",
        kv_role="kv_both", kv_load_failure_policy="recompute",
        kv_connector_extra_config={"store": store_address})
    # Prompts and answers are token ids; with a tokenizer, prompts may be texts.
    engine: Any = vllm.LLM(path, kv_transfer_config=connector, max_model_len=2048,
                           enforce_eager=True, skip_tokenizer_init=True)
    options: Any = vllm.SamplingParams(max_tokens=8, temperature=0, ignore_eos=True,
                                       detokenize=False)
    done = engine.generate([{"prompt_token_ids": ids}], options, use_tqdm=False)[0]
    print(f"{name}: {done.num_cached_tokens} of {len(ids)} tokens restored")
    print(list(done.outputs[0].token_ids), flush=True)
    engine.llm_engine.engine_core.shutdown()  # finishes the saves


def main(path: str, store_address: str, ids: list[int]) -> int:
    failed = 0
    for name in ("first", "second"):
        process = multiprocessing.get_context("spawn").Process(
            target=answer, args=(name, path, store_address, ids))
        process.start()
        process.join()
        failed += process.exitcode != 0
    return failed


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2], [int(one) for one in sys.argv[3].split(",")]))
