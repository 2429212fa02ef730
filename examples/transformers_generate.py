"""transformers' generate, with the prompt's beginning from a store: run it twice.

usage: transformers_generate.py MODEL STORE PROMPT_IDS   (token ids, with commas between them)
"""

import sys
from typing import Any

import torch
import transformers

from hearth_cache.transformers import PrefixCache


def main(path: str, store_address: str, ids: list[int]) -> None:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with PrefixCache(model, store_address) as prefixes:
        print(prefixes.load(ids).get_seq_length(), "of", len(ids), "tokens are stored")
        output = prefixes.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)
    print(output[0, len(ids):].tolist())


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], [int(one) for one in sys.argv[3].split(",")])
