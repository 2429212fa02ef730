"""PrefixCache: models of transformers restore the prefixes of their prompts from a store.

    prefixes = PrefixCache(model, "127.0.0.1:7080")
    output = prefixes.generate(input_ids, max_new_tokens=64)

Supports models on one device whose layers have full or sliding-window attention and one KV shape,
as in Gemma 3. Processes with the same weights, adapters, dtype, attention, versions and threads
share restore points; their results agree within rounding. Each use first checks whether the model
has changed.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Optional, Union, cast

import numpy as np

from hearth_cache._channel import Closing
from hearth_cache._engines import StoreBackoff, config_sha256, load_deadline_s
from hearth_cache._exchange import Bytes, Fetched, Prefix
from hearth_cache._weights import Weights
from hearth_cache.layout import (
    DTYPE_BYTES, GLOBAL, LOCAL, FieldValue, Fingerprint, Layout, ObjectId)
from hearth_cache.store import Store
from hearth_cache.v1 import cache_store_pb2

# Imported by name: strict type checkers do not know most of their types.
torch: Any = importlib.import_module("torch")
transformers: Any = importlib.import_module("transformers")

STEP_TOKENS = 1024  # prefill tokens computed in one step; limits activation memory
SAVE_DEADLINE_S = 10.0
_KINDS = {"full_attention": "g", "sliding_attention": "l"}
_BEGUN = "_hearth_fingerprint"  # attribute of a cache: the model's fingerprint when it was made
# {option of generate(): its harmless values}. With any other value, a restored cache would change
# the answer. In assisted generation, transformers 5.23 computes the prompt again after the cache.
# Hidden states and attentions of restored tokens are not computed. The other options use a
# different loop or cache, or change the prompt.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "assistant_early_exit": (), "assistant_model": (),
    "cache_implementation": ("dynamic", "hybrid"), "constraints": (), "custom_generate": (),
    "dola_layers": (), "force_words_ids": (),
    "num_beam_groups": (1,), "output_attentions": (), "output_hidden_states": (),
    "past_key_values": (), "penalty_alpha": (0,), "prompt_lookup_num_tokens": (),
    "token_healing": (), "use_mtp": ()}
# Arguments of forward() that do not change keys and values; token types only if all are 0.
_TOKEN_TYPES = ("token_type_ids", "mm_token_type_ids")
_HARMLESS = {"attention_mask", "tokenizer", *_TOKEN_TYPES, *_REFUSED}

Ids = Any  # a list of token ids, or a tensor with one row
Rows = list[tuple[Any, Any]]  # for each layer (keys, values), each [1, kv_head, token, head_dim]


class _Layers:
    """Collects the rows of a fetch as slices arrive: for each layer an array [K,
    V][1][kv_head][token][bytes of head_dim]."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._row_bytes = layout.head_dim * DTYPE_BYTES[layout.dtype]
        self._fetched: Optional[Fetched] = None
        self._begins = [0, 0]
        self._layers: list[np.ndarray[Any, np.dtype[np.uint8]]] = []

    def place(self, fetched: Fetched, one: ObjectId, layer: int, data: Bytes) -> None:
        if self._fetched is not fetched:
            self._make(fetched)
        begin, heads = self._begins[one.group], self._layout.kv_heads
        self._layers[layer][:, 0, :, one.begin - begin:one.end - begin] = np.frombuffer(
            data, np.uint8).reshape(2, heads, one.tokens, self._row_bytes)

    def _make(self, fetched: Fetched) -> None:
        self._fetched = fetched
        self._begins = [min((one.begin for one in fetched.objects if one.group == group),
                                 default=0) for group in (GLOBAL, LOCAL)]
        # Memory from torch, because numpy requests huge pages, which is slow where there are none.
        self._layers = [
            torch.empty((2, 1, self._layout.kv_heads,
                         fetched.usable_tokens - self._begins["gl".index(kind)], self._row_bytes),
                        dtype=torch.uint8).numpy() for kind in self._layout.layer_types]

    def rows_at(self, boundary: int) -> Iterator[Any]:
        """Yields for each layer exactly the rows that it holds after `boundary` tokens."""
        for kind, rows in zip(self._layout.layer_types, self._layers):
            if kind == "l":
                rows = rows[:, :, :, max(0, rows.shape[3] - (self._layout.window - 1)):]
            yield torch.from_numpy(rows).view(getattr(torch, self._layout.dtype))


class PrefixCache(Closing):
    """Restores and stores the prefixes of one model. `store`: a Store, or its address. If the store
    fails, load() and generate() find nothing and increment `failures`; save() and prefill() raise
    the error. Thread safety: none."""

    def __init__(self, model: Any, store: Union[Store, str], *, chunk_tokens: int = 128,
                 tenant: str = "") -> None:
        self._model, self._tenant, self._chunk_tokens = model, tenant, chunk_tokens
        self._store = Store(store, deadline_s=SAVE_DEADLINE_S, retries=0) \
            if isinstance(store, str) else store
        self._store.connect()  # connects to the store while the weights are read
        self._weights = Weights(model)
        self._marks: tuple[Any, ...] = ()
        self._last: Fingerprint
        self._last = self.fingerprint
        self._quiet = StoreBackoff()
        self._background = ThreadPoolExecutor(1, "hearth-save")
        self._saving: list[Future[Any]] = []

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the model in its current state."""
        config: Any = self._model.config.get_text_config(decoder=True)
        fields = {**_fields_of(self._model), **self._weights.look()}
        marks = (fields, str(self._model.dtype), str(config.__dict__))
        if marks != self._marks:
            self._last = Fingerprint.of(_layout_of(self._model, self._chunk_tokens), {
                **fields, "config_sha256": config_sha256(config.to_dict())})
            self._marks = marks
        return self._last

    @property
    def layout(self) -> Layout:
        return cast(Layout, self.fingerprint.layout)

    @property
    def failures(self) -> int:
        return self._quiet.failures

    def close(self) -> None:
        """Waits for the saves of generate()."""
        self.flush()
        self._background.shutdown()
        self._store.close()

    def load(self, ids: Ids, *, max_tokens: int = 0) -> Any:
        """Returns a DynamicCache with the longest stored prefix of `ids`; get_seq_length() is its
        length, 0 if nothing is stored. `max_tokens`: the longest prefix to load; 0: at least one
        token is left to compute."""
        return self._load(self._prefix(_list_of(ids)), max_tokens)[0]

    def prefill(self, ids: Ids, *, ttl_s: int = 0) -> Any:
        """Returns a DynamicCache of all `ids`: restores the stored prefix, computes the rest, and
        publishes it."""
        ids = _list_of(ids)
        prefix = self._prefix(ids)
        cache, stored = self._load(prefix, len(ids))
        if stored.usable_tokens < len(ids):
            self._publish(prefix, self._compute(cache, ids), ttl_s, stored)
        elif ttl_s > 0:
            self._publish(prefix, [], ttl_s, stored)
        return cache

    def save(self, cache: Any, ids: Ids, *, ttl_s: int = 0) -> cache_store_pb2.PublishAck:
        """Publishes a cache that load() or prefill() made, after the model computed all `ids`. The
        sliding layers must still hold all needed tokens: if the prompt is longer than their
        window, call activate_past_recording() before the prefill, and crop(0) after save().
        Raises ValueError if load() or prefill() did not make the cache, or if the model has
        changed since then."""
        begun = getattr(cache, _BEGUN, None)
        if begun is None:
            raise ValueError("the cache must be made by load() or prefill(), because the weights "
                             "of other caches are unknown: call load(), then compute the prompt")
        ids = _list_of(ids)
        prefix = self._prefix(ids)
        if begun != prefix.fingerprint:
            raise ValueError("the model's weights, adapters or settings changed after load() or "
                             "prefill() made the cache: call load(), then compute the prompt")
        length = cache.get_seq_length()
        if length != len(ids):
            raise ValueError(f"the cache has {length} tokens, but {len(ids)} ids were given")
        rows, stored = self._rows(cache, length), Fetched()
        # A layer has dropped rows, for example if generate() continued the cache.
        if any(keys.shape[-2] < length for keys, _ in rows):
            stored = self._store.fetch(prefix, max_tokens=length,
                                       place=lambda fetched, one, layer, data: None)
        return self._publish(prefix, rows, ttl_s, stored)

    def generate(self, inputs: Any = None, **options: Any) -> Any:
        """Calls model.generate() with the stored prefix of each prompt restored; publishes new
        prefixes in the background. `inputs`: a tensor [prompts, tokens], or the output of a
        tokenizer with return_tensors="pt", which may also be passed as **options. Padding must be
        on the left. Raises ValueError for an option that would change the answer."""
        if not torch.is_tensor(inputs):
            options = {**(inputs if isinstance(inputs, Mapping) else {}), **options}
            inputs = options.pop("input_ids", inputs)
        if not torch.is_tensor(inputs):
            raise TypeError("inputs must be a tensor [prompts, tokens], or a tokenizer's output "
                            f"with return_tensors=\"pt\"; got {type(inputs).__name__}")
        self._check(options)
        mask = options.get("attention_mask")
        if mask is None:
            mask = options["attention_mask"] = self._mask_of(inputs, options)
        prompts = _prompts_of(inputs, mask)
        # With use_cache=False, transformers would compute the whole prompt again after the cache.
        if self._setting(options, "use_cache") is False:
            options["use_cache"] = True
        if self._setting(options, "cache_implementation") is not None:
            options["cache_implementation"] = None
        columns = inputs.shape[1] - 1
        if len(prompts) == 1 and len(prompts[0]) > columns:
            cache = self._begin(prompts[0])
        elif min(len(ids) for ids in prompts) > 1:
            cache = self._stack([self._begin(ids, whole=True) for ids in prompts], columns)
        else:
            cache = transformers.DynamicCache(config=self._model.config)
        copies = max(self._setting(options, name) or 1 for name in (
            "num_beams", "num_return_sequences"))
        if copies > 1:
            cache.batch_repeat_interleave(copies)
        return self._model.generate(inputs, past_key_values=cache, **options)

    def _setting(self, options: dict[str, Any], name: str) -> Any:
        """Returns an option's value where transformers looks for it: the call, its
        generation_config, the model's generation_config."""
        if name in options:
            return options[name]
        given = getattr(options.get("generation_config"), name, None)
        return getattr(self._model.generation_config, name, None) if given is None else given

    def _check(self, options: dict[str, Any]) -> None:
        known: set[str] = {*vars(transformers.GenerationConfig()), *_HARMLESS,
                           *inspect.signature(transformers.GenerationMixin.generate).parameters}
        types = [name for name in _TOKEN_TYPES if options.get(name) is not None
                 and bool(options[name].any())]
        for name in (*_REFUSED, *types, *(options.keys() - known)):
            value, harmless = self._setting(options, name), _REFUSED.get(name, ())
            if value is not None and value is not False and not (harmless and value in harmless):
                why = "a restored cache would change the answer" \
                    if name in known else "unknown option, which may change keys and values"
                raise ValueError(f"{name}: {why}. Leave it out (to override the model's "
                                 f"generation_config, pass {name}=None), or call the model's own "
                                 "generate()")

    def _mask_of(self, inputs: Any, options: dict[str, Any]) -> Any:
        """Makes the attention mask as transformers does: the padding token counts as padding unless
        it is also an end token."""
        pad, ends = (self._setting(options, name) for name in ("pad_token_id", "eos_token_id"))
        if pad is None or (ends is not None and pad in torch.as_tensor(ends).flatten().tolist()):
            return torch.ones_like(inputs)
        return inputs.ne(pad).long()

    def _begin(self, ids: list[int], *, whole: bool = False) -> Any:
        """Returns a cache of the prompt's whole chunks: restores the stored ones, computes the
        others and publishes them in the background. `whole`: the cache also has the tokens after
        the last whole chunk, except the last token."""
        prefix = self._prefix(ids)
        cache, stored = self._load(prefix, 0)
        boundary = (len(ids) - 1) // self._chunk_tokens * self._chunk_tokens
        if boundary > stored.usable_tokens:
            rows = self._compute(cache, ids[:boundary])
            self._saving = [one for one in self._saving if not one.done()]
            self._saving.append(self._background.submit(
                self._keep, replace(prefix, token_ids=ids[:boundary]), rows, stored))
        if whole:
            self._compute(cache, ids[:-1])
        return cache

    def _stack(self, caches: list[Any], columns: int) -> Any:
        """Stacks the caches of several prompts, padded on the left with zeros, which are masked."""
        stacked = transformers.DynamicCache(config=self._model.config)
        layout = cast(Layout, self._last.layout)
        for number, kind in enumerate(layout.layer_types):
            width = min(columns, layout.window - 1) if kind == "l" else columns
            keys, values = (torch.cat([torch.nn.functional.pad(
                rows, (0, 0, width - rows.shape[-2], 0)) for rows in each]) for each in zip(*(
                    (one.layers[number].keys, one.layers[number].values) for one in caches)))
            _fill(stacked.layers[number], keys, values, columns)
        return stacked

    def flush(self) -> None:
        """Waits for the saves of generate()."""
        for one in self._saving:
            one.result()
        self._saving = []

    def _prefix(self, ids: Sequence[int]) -> Prefix:
        """Makes a prefix with the model's current fingerprint. Call before the prompt is computed:
        the model may change before a background save."""
        prefix = Prefix(self.fingerprint, ids, tenant=self._tenant)
        if self._weights.training:
            raise ValueError("the model is in training mode: dropout changes keys and values, "
                             "and checkpointing drops caches. Call model.eval() first")
        return prefix

    def _load(self, prefix: Prefix, max_tokens: int) -> tuple[Any, Fetched]:
        layout, ids = cast(Layout, prefix.fingerprint.layout), prefix.token_ids
        fetched, layers = Fetched(), _Layers(layout)
        if len(ids) > 1 and not self._quiet:
            with self._quiet.call():
                fetched = self._store.fetch(prefix, max_tokens=max_tokens, place=layers.place,
                                            deadline_s=load_deadline_s(
                                                layout.needed_bytes(len(ids))))
        cache: Any = transformers.DynamicCache(config=self._model.config)
        setattr(cache, _BEGUN, prefix.fingerprint)
        if fetched.usable_tokens > 0:
            for number, rows in enumerate(layers.rows_at(fetched.usable_tokens)):
                keys, values = rows.to(self._model.device)
                _fill(cache.layers[number], keys, values, fetched.usable_tokens)
        return cache, fetched

    def _compute(self, cache: Any, ids: list[int]) -> Rows:
        """Computes the tokens that the cache lacks, and returns all rows that it then holds. The
        sliding layers drop no token until the end of this call."""
        cache.activate_past_recording()
        with torch.no_grad():
            for begin in range(cache.get_seq_length(), len(ids), STEP_TOKENS):
                step = torch.tensor([ids[begin:begin + STEP_TOKENS]], device=self._model.device)
                self._model(input_ids=step, past_key_values=cache, use_cache=True,
                            logits_to_keep=1)
        rows = self._rows(cache, len(ids))
        cache.crop(0)
        for layer in cache.layers:
            if hasattr(layer, "record_past"):
                layer.record_past = False
        return rows

    def _rows(self, cache: Any, length: int) -> Rows:
        """Returns the cache's rows. They stay valid, because a cache that grows makes new
        tensors."""
        layout = cast(Layout, self._last.layout)
        wanted = (length, 1, layout.kv_heads, layout.head_dim, f"torch.{layout.dtype}")
        rows: Rows = []
        for number, layer in enumerate(cache.layers[:len(layout.layer_types)]):
            keys = layer.keys
            found = (layer.get_seq_length(), *(() if keys is None else (
                *keys.shape[:2], keys.shape[-1], str(keys.dtype))))
            if found != wanted:
                raise ValueError(f"layer {number}: (tokens, prompts, heads, head_dim, dtype) must "
                                 f"be {wanted}; got {found}")
            rows.append((keys, layer.values))
        return rows

    def _keep(self, prefix: Prefix, rows: Rows, stored: Fetched) -> None:
        with self._quiet.call():
            self._publish(prefix, rows, 0, stored)

    def _publish(self, prefix: Prefix, rows: Rows, ttl_s: int,
                 stored: Fetched) -> cache_store_pb2.PublishAck:
        tokens = len(prefix.token_ids)
        last_chunk = tokens - tokens % self._chunk_tokens
        boundaries = [one for one in sorted({last_chunk, tokens})
                      if one > stored.usable_tokens] or [tokens]

        def slice_of(one: ObjectId, layer: int) -> memoryview:
            begin = tokens - rows[layer][0].shape[-2]
            if one.begin < begin:
                raise ValueError(
                    f"layer {layer} keeps tokens from {begin} on, but tokens from {one.begin} "
                    "on are needed: a sliding layer drops tokens that its window has passed. "
                    "Call cache.activate_past_recording() before the prefill, and cache.crop(0) "
                    "after save(); prefill() does both")
            both = torch.stack([kind[0, :, one.begin - begin:one.end - begin]
                                for kind in rows[layer]])
            return memoryview(both.cpu().contiguous().view(torch.uint8).numpy()).cast("B")

        return self._store.publish(prefix, boundaries, slice_of, ttl_s=ttl_s, stored=stored)


def _list_of(ids: Ids) -> list[int]:
    if torch.is_tensor(ids):
        if ids.dim() == 2 and ids.shape[0] != 1:
            raise ValueError(f"must be one prompt; got {ids.shape[0]}")
        ids = ids.flatten().tolist()
    return [int(one) for one in ids]


def _prompts_of(inputs: Any, mask: Any) -> list[list[int]]:
    """Returns the token ids of each prompt, without padding."""
    if inputs.dim() != 2 or 0 in inputs.shape or mask.shape != inputs.shape:
        raise ValueError("inputs and attention_mask must have the shape [prompts, tokens]; got "
                         f"{list(inputs.shape)} and {list(mask.shape)}")
    shown = mask.bool()
    if not bool(shown[:, -1].all()) or bool((shown[:, :-1] & ~shown[:, 1:]).any()):
        raise ValueError("attention_mask: padding must be on the left. Set the tokenizer's "
                         "padding_side to 'left'")
    return [row[of].tolist() for row, of in zip(inputs, shown.to(inputs.device))]


def _fill(layer: Any, keys: Any, values: Any, tokens: int) -> None:
    """Sets the keys and values [1, kv_head, row, head_dim] of a new cache's layer, as after
    `tokens` tokens."""
    layer.lazy_initialization(keys, values)
    layer.keys, layer.values = keys, values
    if layer.is_sliding:
        layer.cumulative_length = tokens


def _layout_of(model: Any, chunk_tokens: int) -> Layout:
    config = model.config.get_text_config(decoder=True)
    kinds: list[str] = getattr(config, "layer_types", None) or \
        ["full_attention"] * config.num_hidden_layers
    unknown = sorted(set(kinds) - set(_KINDS))
    shares = bool(getattr(config, "num_kv_shared_layers", 0))
    if unknown or shares:
        raise ValueError(f"unsupported layers: {', '.join(unknown) or 'shared keys and values'}; "
                         f"must be {' or '.join(_KINDS)}, each with its own keys and values")
    head_dim: int = getattr(config, "head_dim", None) or \
        config.hidden_size // config.num_attention_heads
    window = config.sliding_window if "sliding_attention" in kinds else 0
    return Layout("".join(_KINDS[kind] for kind in kinds), window, config.num_key_value_heads,
                  head_dim, str(model.dtype).removeprefix("torch."), chunk_tokens)


def _fields_of(model: Any) -> dict[str, FieldValue]:
    config, device = model.config.get_text_config(decoder=True), model.device.type
    on_cpu, precision = device == "cpu", str(torch.get_float32_matmul_precision())
    fields: dict[str, FieldValue] = {
        "engine": "transformers", "transformers": transformers.__version__,
        "torch": str(torch.__version__), "device": device,
        "threads": torch.get_num_threads() if on_cpu else 0,
        "capability": torch.backends.cpu.get_cpu_capability() if on_cpu
        else torch.cuda.get_device_name(model.device),
        "attention": str(config._attn_implementation)}
    if precision != "highest":
        fields["matmul_precision"] = precision
    if torch.is_autocast_enabled(device):
        fields["autocast"] = str(torch.get_autocast_dtype(device))
    return fields
