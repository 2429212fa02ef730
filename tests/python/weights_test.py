"""PrefixCache on a model that changes in memory: training, edits, PEFT adapters, hooks."""

import threading
import unittest.mock
import warnings
import weakref

import python_support
from python_support import prompt
from transformers_support import NEW_TOKENS, TOLERANCE, TransformersTest

import peft
import torch
from hearth_cache import _weights
from hearth_cache._weights import Weights
from transformers import DynamicCache

TOKENS = 100
HALF_TOLERANCE = 0.05


def first(model):
    return model.model.layers[0].self_attn.k_proj


def train(model):
    some = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.SGD(some, lr=0.5)
    model(torch.tensor([prompt(20, 99)])).logits.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def scaled_state(model):
    return {name: one * 1.25 for name, one in model.state_dict().items()}


def write_data(model):
    first(model).weight.data = first(model).weight.data * 1.25


def replace_parameter(model):
    first(model).weight = torch.nn.Parameter(first(model).weight.detach() * 1.25)


def replace_module(model):
    model.model.layers[0].self_attn.k_proj = torch.nn.Linear(
        first(model).in_features, first(model).out_features, bias=False).eval()


def inference_mode_write(model):
    with torch.inference_mode():
        first(model).weight.mul_(1.25)


def write_buffers(model):
    for one in model.buffers():
        one.mul_(1.25)


def replace_forward(model):
    forward = first(model).forward
    first(model).forward = lambda *call: forward(*call) * 1.25


class Wrapper(torch.Tensor):
    """A tensor without memory of its own, like those of torchao and quanto."""

    @staticmethod
    def __new__(cls, of):
        return torch.Tensor._make_wrapper_subclass(cls, of.shape, dtype=of.dtype)

    @classmethod
    def __torch_dispatch__(cls, *call):
        raise NotImplementedError


def wrap(model):
    first(model)._parameters["weight"] = Wrapper(first(model).weight)


def quantize_dynamically(model):
    torch.backends.quantized.engine = torch.backends.quantized.supported_engines[-1]
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, inplace=True)


# {name: (change after which a model cannot be hashed, pattern of the error)}. The error names the
# parameter or layer.
UNHASHABLE = {
    "wrapper": (wrap, r"k_proj\.weight cannot be hashed"),
    "meta": (lambda model: first(model).to("meta"), r"k_proj\.weight cannot be hashed"),
    "torch.ao": (quantize_dynamically, r"_packed_params cannot .* outside"),
    "bitsandbytes 4": (lambda model: (replace_parameter(model), setattr(
        first(model).weight, "quant_state", 1)), r"k_proj cannot .* outside"),
    "bitsandbytes 8": (lambda model: (replace_parameter(model), setattr(
        first(model).weight, "SCB", None)), r"k_proj cannot .* outside"),
    "hqq": (lambda model: (first(model).register_parameter("W_q", first(model).weight),
                           setattr(first(model), "meta", {"scale": 1})),
            r"k_proj cannot .* outside"),
}
CHANGES = {
    "optimizer": train,
    "load_state_dict": lambda model: model.load_state_dict(scaled_state(model)),
    "assigned": lambda model: model.load_state_dict(scaled_state(model), assign=True),
    "data": write_data,
    "data in place": lambda model: first(model).weight.data.mul_(1.25),
    "inference mode": inference_mode_write,
    "parameter": replace_parameter,
    "module": replace_module,
    "buffers": write_buffers,
    "hook": lambda model: first(model).register_forward_hook(lambda *call: call[2] * 1.25),
    "forward": replace_forward,
    "attention": lambda model: model.set_attn_implementation("eager"),
    "dtype": lambda model: model.to(torch.bfloat16),
}


class ModelChanges(TransformersTest):
    def setUp(self):
        super().setUp()
        self.untouched = self.prefixes_of(self.load_model())

    def restored(self, prefixes, ids):
        return prefixes.load(ids + [5]).get_seq_length()

    def logits_of(self, generate, ids, **options):
        """Returns the logits of each generated token: [token, vocabulary]."""
        made = generate(torch.tensor([ids]), max_new_tokens=NEW_TOKENS, do_sample=False,
                        eos_token_id=None, pad_token_id=0, output_logits=True,
                        return_dict_in_generate=True, **options)
        return torch.cat(made.logits).float()

    def expect_plain(self, prefixes, model, ids, **options):
        """Checks that generate() gives the logits of the model without a cache."""
        alone = self.logits_of(model.generate, ids)
        apart = (self.logits_of(prefixes.generate, ids, **options) - alone).abs().max().item()
        self.assertLess(apart, TOLERANCE if model.dtype == torch.float32 else HALF_TOLERANCE)
        prefixes.flush()

    def test_changed_model_shares_no_prefixes(self):
        for number, (name, change) in enumerate(CHANGES.items()):
            with self.subTest(name):
                ids, after = prompt(TOKENS, number), prompt(TOKENS, 50 + number)
                model = self.load_model()
                prefixes = self.prefixes_of(model)
                prefixes.prefill(ids)
                self.assertEqual(self.restored(prefixes, ids), TOKENS)
                change(model)
                self.assertEqual(self.restored(prefixes, ids), 0)
                self.expect_plain(prefixes, model, ids)
                prefixes.prefill(after)
                self.assertEqual(self.restored(prefixes, after), TOKENS)
                self.expect_plain(prefixes, model, after)
                self.assertEqual(self.restored(self.untouched, after), 0)
                self.assertEqual(self.restored(self.untouched, ids), TOKENS)

    def test_reverted_change_restores_earlier_prefixes(self):
        ids, state = prompt(TOKENS, 1), self.load_model().state_dict()
        self.prefixes.prefill(ids)
        train(self.loaded)
        self.assertEqual(self.restored(self.prefixes, ids), 0)
        self.loaded.load_state_dict(state)
        self.assertEqual(self.restored(self.prefixes, ids), TOKENS)
        hook = first(self.loaded).register_forward_hook(lambda *call: call[2] * 1.25)
        self.assertEqual(self.restored(self.prefixes, ids), 0)
        hook.remove()
        self.assertEqual(self.restored(self.prefixes, ids), TOKENS)

    def test_inference_tensor_change_is_detected(self):
        ids = prompt(TOKENS, 8)
        with torch.inference_mode():
            model = self.load_model()
            prefixes = self.prefixes_of(model)
            prefixes.prefill(ids)
            self.assertEqual(self.restored(prefixes, ids), TOKENS)
            inference_mode_write(model)
            self.assertEqual(self.restored(prefixes, ids), 0)

    def test_replaced_tensors_are_freed(self):
        weights = Weights(self.loaded)
        weights.look()
        old = weakref.ref(first(self.loaded).weight.untyped_storage())
        self.assertIsNotNone(old())
        replace_parameter(self.loaded)
        self.assertIsNone(old())

    def test_only_changed_tensors_are_hashed(self):
        # Tests both ways to read samples: from memory and, as for a device, through tensors
        # (span_of returns None).
        for name, span_of in (("memory", _weights._span_of), ("device", lambda one: None)):
            weights, hashed = Weights(self.loaded), []
            with self.subTest(name), unittest.mock.patch.multiple(
                    _weights, _span_of=span_of, _digest_of=lambda one: hashed.append(one) or b""):
                fields = weights.look()
                self.assertGreater(len(hashed), 40)
                hashed.clear()
                self.assertIs(weights.look(), fields)
                first(self.loaded).weight.data.mul_(1.25)
                self.assertIsNot(weights.look(), fields)
                self.assertEqual([id(one) for one in hashed], [id(first(self.loaded).weight)])

    def test_unhashable_model_is_refused(self):
        for name, (change, message) in UNHASHABLE.items():
            with self.subTest(name):
                model = self.load_model()
                weights = Weights(model)
                weights.look()
                change(model)
                for look in (weights.look, weights.look, Weights(model).look):
                    with self.assertRaisesRegex(ValueError, message):
                        look()

    def test_compiled_models_share_prefixes(self):
        ids = prompt(TOKENS, 9)
        for restored in (0, 96):
            prefixes = self.prefixes_of(torch.compile(self.load_model(), backend="eager"))
            self.assertEqual(self.restored(prefixes, ids), restored)
            self.expect_plain(prefixes, self.loaded, ids)
        torch._dynamo.reset()

    def test_background_save_keeps_its_weights(self):
        ids, waiting = prompt(TOKENS, 2), threading.Event()
        self.addCleanup(waiting.set)
        self.prefixes._background.submit(waiting.wait)
        self.prefixes.generate(torch.tensor([ids]), max_new_tokens=1)
        train(self.loaded)
        waiting.set()
        self.prefixes.flush()
        self.assertEqual(self.restored(self.prefixes, ids), 0)
        self.assertEqual(self.restored(self.untouched, ids), 96)
        self.expect_plain(self.untouched, self.load_model(), ids)

    def test_cache_from_before_change_is_refused(self):
        ids = prompt(50, 3)  # the prompt is shorter than the window, so no row was dropped
        begun = self.prefixes.load(ids)
        self.next_logits(ids, begun)
        with torch.no_grad():
            first(self.loaded).weight.mul_(1.25)
        for _ in range(2):
            with self.assertRaisesRegex(ValueError, "changed after load"):
                self.prefixes.save(begun, ids)
        self.assertEqual(self.store.list(), [])
        again = self.prefixes.load(ids)
        self.next_logits(ids, again)
        self.prefixes.save(again, ids)
        self.assertEqual(self.restored(self.prefixes, ids), 50)

    def test_cache_not_from_load_is_refused(self):
        ids = prompt(50, 10)
        made = DynamicCache(config=self.loaded.config)
        self.next_logits(ids, made)
        with torch.no_grad():
            first(self.loaded).weight.mul_(1.25)
        self.assertEqual(self.prefixes.layout.window, 70)
        for _ in range(2):
            with self.assertRaisesRegex(ValueError, "must be made by load"):
                self.prefixes.save(made, ids)
        self.assertEqual(self.store.list(), [])

    def test_use_cache_false_gives_same_answer(self):
        ids, model = prompt(TOKENS, 4), self.load_model()
        for config in (model.config, model.generation_config):
            config.use_cache = False
        prefixes = self.prefixes_of(model)
        self.expect_plain(prefixes, self.loaded, ids)
        self.assertEqual(self.restored(prefixes, ids), 96)
        self.expect_plain(prefixes, self.loaded, ids)
        self.expect_plain(self.prefixes, self.loaded, ids, use_cache=False)

    def test_training_model_and_extra_inputs_refused(self):
        ids = prompt(TOKENS, 5)
        self.loaded.train()
        for use in (lambda: self.prefixes.load(ids), lambda: self.prefixes.prefill(ids),
                    lambda: self.greedy(self.prefixes.generate, ids)):
            with self.assertRaisesRegex(ValueError, r"Call model\.eval\(\) first"):
                use()
        self.loaded.eval()
        self.expect_plain(self.prefixes, self.loaded, ids)
        for name in ("adapter_names", "inputs_embeds", "pixel_values", "position_ids",
                     "assistant_model", "prompt_lookup_num_tokens"):
            with self.assertRaisesRegex(ValueError, name):
                self.prefixes.generate(torch.tensor([ids]), **{name: ["x"]})
        self.loaded.generation_config.prompt_lookup_num_tokens = 3
        with self.assertRaisesRegex(ValueError, "prompt_lookup_num_tokens"):
            self.prefixes.generate(torch.tensor([ids]))
        self.assertEqual(self.prefixes.generate(
            torch.tensor([ids]), prompt_lookup_num_tokens=None, max_new_tokens=1).shape,
            (1, TOKENS + 1))

    def lora(self, model, **options):
        torch.manual_seed(7)
        return peft.get_peft_model(model, peft.LoraConfig(
            r=4, target_modules=["q_proj", "k_proj", "v_proj"], init_lora_weights=False,
            **options)).eval()

    def test_only_equal_adapters_share_prefixes(self):
        ids = prompt(TOKENS, 6)
        model = self.lora(self.load_model())
        prefixes = self.prefixes_of(model)
        self.expect_plain(prefixes, model, ids)
        self.assertEqual(self.restored(self.untouched, ids), 0)
        with model.disable_adapter():
            self.assertEqual(self.restored(prefixes, ids), 0)
            self.expect_plain(prefixes, model, ids)
        self.assertEqual(self.restored(self.untouched, ids), 96)  # as without adapters
        self.expect_plain(self.untouched, self.load_model(), ids)
        self.assertEqual(self.restored(prefixes, ids), 96)
        self.expect_plain(prefixes, model, ids)
        model.save_pretrained(self.folder / "adapter")
        loaded = peft.PeftModel.from_pretrained(self.load_model(), self.folder / "adapter")
        self.assertEqual(self.restored(self.prefixes_of(loaded), ids), 96)

    def test_adapter_changes_start_cold(self):
        model = self.lora(self.load_model())
        config = model.peft_config["default"]
        prefixes = self.prefixes_of(model)

        def scale():
            for one in model.modules():
                if isinstance(one, peft.tuners.lora.LoraLayer):
                    one.set_scale("default", 2.0)

        known = {}
        for number, (name, change) in enumerate({
                "first": lambda: None,
                "second": lambda: (model.add_adapter("second", config),
                                   model.set_adapter("second"), model.eval()),
                "scale": lambda: (model.set_adapter("default"), scale()),
                "merge": model.merge_adapter,
                "unmerge": model.unmerge_adapter,
                "train": lambda: train(model)}.items()):
            with self.subTest(name):
                ids = prompt(TOKENS, 60 + number)
                change()
                self.assertNotIn(prefixes.fingerprint.digest, known)
                for before in known.values():
                    self.assertEqual(self.restored(prefixes, before), 0)
                known[prefixes.fingerprint.digest] = ids
                self.expect_plain(prefixes, model, ids)
                self.assertEqual(self.restored(prefixes, ids), 96)
                self.expect_plain(prefixes, model, ids)
        model.set_adapter("second")
        model.set_adapter("default")
        self.assertEqual(self.restored(prefixes, ids), 96, "nothing but the switch is different")

    def test_adapter_added_later_starts_cold(self):
        ids = prompt(TOKENS, 7)
        self.prefixes.prefill(ids)
        self.loaded.add_adapter(peft.LoraConfig(
            r=4, target_modules=["k_proj"], init_lora_weights=False))
        self.loaded.eval()
        self.assertEqual(self.restored(self.prefixes, ids), 0)
        self.expect_plain(self.prefixes, self.loaded, ids)
        self.loaded.disable_adapters()
        self.assertEqual(self.restored(self.prefixes, ids), TOKENS)
        self.expect_plain(self.prefixes, self.loaded, ids)

    def test_prompt_tuning_and_alora_are_refused(self):
        for kind, config in (
                ("PROMPT_TUNING", peft.PromptTuningConfig(
                    task_type="CAUSAL_LM", num_virtual_tokens=4)),
                ("LORA", peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["k_proj"],
                                         alora_invocation_tokens=[5, 6]))):
            model = peft.get_peft_model(self.load_model(), config).eval()
            with self.assertRaisesRegex(ValueError, f"default has the unsupported kind {kind}"):
                self.prefixes_of(model)


if __name__ == "__main__":
    python_support.main()
