"""PrefixCache.generate() against transformers' generate(): with each supported option the answer is
the same, with an empty store and with a restored prompt. Unsupported options are refused by
name."""

import itertools

import python_support
from python_support import LONG_S, prompt
from transformers_support import NEW_TOKENS, TOLERANCE, TransformersTest

import tokenizers
import torch
import transformers

PAD = 0
SEEDS = itertools.count(100)  # each prompt gets a new seed
SAMPLED = {"do_sample": True, "temperature": 2.0}


def padded(*lengths, columns=0):
    """Returns a tokenizer's output for prompts of these lengths, with padding on the left."""
    columns = columns or max(lengths)
    return {"input_ids": torch.tensor([[PAD] * (columns - length) + prompt(length, next(SEEDS))
                                       for length in lengths]),
            "attention_mask": torch.tensor([[0] * (columns - length) + [1] * length
                                            for length in lengths])}


class Generate(TransformersTest):
    def setUp(self):
        super().setUp()
        self.ids = torch.tensor([prompt(150, 4)])

    def expect_same(self, inputs, hits, **options):
        """Calls PrefixCache.generate() twice and compares with transformers. `hits`: number of
        prompts that the second call must restore."""
        answers = []
        for generate in (self.loaded.generate, self.prefixes.generate, self.prefixes.generate):
            before = sum(one.hits for one in self.store.list())
            torch.manual_seed(1)
            answers.append(generate(**inputs, **{
                "max_new_tokens": NEW_TOKENS, "eos_token_id": None, "pad_token_id": PAD,
                "return_dict_in_generate": True, "output_logits": True, **options}))
            self.prefixes.flush()
        self.assertEqual(sum(one.hits for one in self.store.list()) - before, hits)
        wanted = answers[0]
        for got in answers[1:]:
            self.assertTrue(torch.equal(got.sequences, wanted.sequences))
            for one, other in zip(got.logits, wanted.logits, strict=True):
                self.assertLess((one - other).abs().max().item(), TOLERANCE)
            if wanted.past_key_values is not None:
                self.assertEqual(got.past_key_values.get_seq_length(),
                                 wanted.past_key_values.get_seq_length())

    def test_supported_options_keep_answers(self):
        for number, options in enumerate((
                SAMPLED, {**SAMPLED, "num_return_sequences": 3}, {"num_beams": 3},
                {"num_beams": 4, "num_return_sequences": 2}, {**SAMPLED, "num_beams": 3},
                {"use_cache": False}, {"cache_implementation": "dynamic"},
                {"cache_implementation": "hybrid"},  # transformers ignores this option, too
                {"prefill_chunk_size": 7}, {"guidance_scale": 1.5}, {"max_new_tokens": 1},
                {"max_new_tokens": None, "max_length": 153}, {"repetition_penalty": 1.5},
                {"guidance_scale": 1.5, "negative_prompt_ids": torch.tensor([[5, 6]])},
                {"encoder_no_repeat_ngram_size": 2}, {"min_new_tokens": 3, "eos_token_id": [3]},
                {"num_beam_groups": 1, "penalty_alpha": 0.0, "token_healing": False})):
            with self.subTest(options):
                self.expect_same({"inputs": torch.tensor([prompt(150, number)])}, 1, **options)

    def test_generation_config_options_apply(self):
        config = transformers.GenerationConfig(num_beams=2, use_cache=False)
        self.loaded.generation_config.num_return_sequences = 2
        # As in the model's config on the Hugging Face Hub.
        self.loaded.generation_config.cache_implementation = "hybrid"
        self.expect_same({"inputs": self.ids}, 1, generation_config=config)

    def test_batched_prompts_are_each_restored(self):
        for number, (inputs, hits, options) in enumerate((
                (padded(150, 90, 75, 5), 3, {}), (padded(150, 149), 2, SAMPLED),
                (padded(150, 100), 2, {**SAMPLED, "num_return_sequences": 2}),
                (padded(150, 100), 2, {"num_beams": 3}), (padded(40, 60), 2, {}),
                (padded(150, 120, columns=200), 2, {}), (padded(60, columns=64), 1, {}),
                (padded(150, 1), 0, {}), (padded(1), 0, {}))):
            with self.subTest(number):
                self.expect_same(inputs, hits, **options)

    def test_padding_is_detected_without_mask(self):
        ids = padded(150, 100)["input_ids"]
        self.expect_same({"inputs": ids}, 2)
        ids = padded(150, 100)["input_ids"]
        ids[ids == PAD] = 40  # 40 is an end token, so it does not count as padding
        self.expect_same({"inputs": ids}, 2, pad_token_id=40, eos_token_id=[40])

    def test_answer_can_be_streamed(self):
        words = {f"w{number}": number for number in range(self.loaded.config.vocab_size)}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
        streamer = transformers.TextIteratorStreamer(transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer), skip_prompt=True, timeout=LONG_S)
        answer = self.greedy(self.prefixes.generate, self.ids[0].tolist(), streamer=streamer)
        self.assertEqual("".join(streamer).split(), [f"w{one}" for one in answer[150:]])

    def test_unsupported_options_are_refused(self):
        cache = transformers.DynamicCache(config=self.loaded.config)
        for name, value in (
                *((one, one) for one in (
                    "assistant_model", "custom_generate", "adapter_names", "inputs_embeds",
                    "pixel_values", "position_ids", "trust_me")),
                *(("cache_implementation", one) for one in (
                    "static", "offloaded", "offloaded_static", "quantized", "sliding_window",
                    "paged")),
                ("assistant_early_exit", 1), ("prompt_lookup_num_tokens", 1), ("use_mtp", True),
                ("constraints", [1]), ("force_words_ids", [[1]]), ("num_beam_groups", 2),
                ("penalty_alpha", 0.6), ("dola_layers", "low"), ("token_healing", True),
                ("output_attentions", True), ("output_hidden_states", True),
                ("past_key_values", cache), ("token_type_ids", torch.ones_like(self.ids))):
            with self.subTest(name), self.assertRaisesRegex(ValueError, f"^{name}: "):
                self.prefixes.generate(self.ids, **{name: value})
            if hasattr(self.loaded.generation_config, name):
                setattr(self.loaded.generation_config, name, value)
                with self.subTest(name), self.assertRaisesRegex(ValueError, f"{name}=None"):
                    self.prefixes.generate(self.ids)
                self.expect_same({"inputs": self.ids}, 1, **{name: None})
                setattr(self.loaded.generation_config, name, None)
        for mask in ([1] * 149 + [0], [1, 0] + [1] * 148, [0] * 150):
            with self.assertRaisesRegex(ValueError, "padding_side to 'left'"):
                self.prefixes.generate(self.ids, attention_mask=torch.tensor([mask]))
        for ids in (self.ids[0], self.ids[:, :0], self.ids[:0]):
            with self.assertRaisesRegex(ValueError, r"the shape \[prompts, tokens\]"):
                self.prefixes.generate(ids)
        for inputs in (None, ["a prompt"], {"input_ids": [[1, 2]]}):
            with self.assertRaisesRegex(TypeError, "must be a tensor"):
                self.prefixes.generate(inputs)


if __name__ == "__main__":
    python_support.main()
