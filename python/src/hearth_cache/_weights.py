"""Fingerprint fields of a torch model by its content: tensors, adapters, hooks. The content can
change in memory at any time, so each use compares it again."""

from __future__ import annotations

import ctypes
import importlib
import json
import secrets
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional, cast

import xxhash

from hearth_cache.layout import FieldValue

# Imported by name: strict type checkers do not know its types.
torch: Any = importlib.import_module("torch")

SAMPLE_BYTES = 64  # bytes from the middle of a tensor that each look() compares
# Fields of an adapter's config that do not change its results.
_IGNORED = {"auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision"}
# Adapter types whose results depend on the call or on later tokens.
_WHOLE_PROMPT = {"POLY", "XLORA"}


@dataclass
class _State:
    # The tensors of the model, in the order in which _state_of() visits them.
    tensors: list[Any] = field(default_factory=list[Any])
    # Names of the active adapters in each PEFT layer.
    adapters: list[str] = field(default_factory=list[str])
    # Ids of hooks, and functions that replace forward().
    hooks: list[Any] = field(default_factory=list[Any])
    training: bool = False


@dataclass(frozen=True)
class _Seen:
    """A tensor at the last look(): weak reference, (version, address), sampled bytes, digest."""

    ref: Callable[[], Any]
    mark: tuple[int, int]
    sample: bytes
    digest: bytes


class Weights:
    """Fingerprints the content of a model. `training`: whether a module was in training mode at the
    last look(). Thread safety: none."""

    def __init__(self, model: Any) -> None:
        self._model, self.training = model, False
        self._marks: tuple[Any, ...] = ()
        self._seen: list[_Seen] = []  # one entry for each tensor at the last look()
        # (address, size) of each sample, if all tensors are on the CPU.
        self._spans: list[tuple[int, int]] = []
        self._samples: list[bytes] = []
        # Hooks at the last look(), and the random number that names them.
        self._hooks: tuple[list[Any], int] = [], 0
        self._fields: dict[str, FieldValue] = {}

    def look(self) -> dict[str, FieldValue]:
        """Returns the fingerprint fields of the model; the same dictionary if nothing has changed.
        Hashes only changed tensors. A tensor counts as changed if its object, version counter,
        address or sampled bytes differ. The sample is needed because writes through `.data`, and
        some optimizers' kernels, do not increment the version."""
        state = _state_of(self._model)
        self.training = state.training
        marks = ([0 if one.is_inference() else one._version for one in state.tensors],
                 [one.data_ptr() for one in state.tensors], state.adapters, state.hooks)
        if marks != self._marks or any(
                seen.ref() is not one for seen, one in zip(self._seen, state.tensors)) or \
                self._take_samples(state.tensors) != self._samples:
            self._fields = self._name(state, dict(zip(map(id, state.tensors), zip(*marks[:2]))))
            self._spans = [span for span in map(_span_of, state.tensors) if span]
            self._marks, self._samples = marks, self._take_samples(state.tensors)
        return self._fields

    def _take_samples(self, tensors: list[Any]) -> list[bytes]:
        """Returns the sampled bytes of all tensors. Keeps no views, because a view keeps the memory
        of a freed tensor."""
        if len(self._spans) == len(tensors):
            return [ctypes.string_at(*span) for span in self._spans]
        views: dict[Any, list[Any]] = {}
        for one in tensors:
            views.setdefault(one.device, []).append(_view_of(one))
        return [_bytes_of(torch.cat(each)) for each in views.values()]

    def _name(self, state: _State, marks: dict[int, tuple[int, int]]) -> dict[str, FieldValue]:
        _check_adapters(self._model)
        _check_layers(self._model)
        before = {id(one.ref()): one for one in self._seen}
        now: dict[int, _Seen] = {}
        # Removes PEFT's prefixes from the names, so that a model with disabled adapters equals a
        # model without adapters.
        names = {id(one): name.removeprefix("base_model.model.").replace(".base_layer.", ".")
                 .replace(".original_module.", ".")
                 for each in (self._model.named_parameters, self._model.named_buffers)
                 for name, one in each()}
        for one in state.tensors:
            if one.numel() and not marks[id(one)][1]:
                raise ValueError(f"{names[id(one)]} cannot be hashed: it has no memory of its own, "
                                 "like tensors that are sharded, offloaded, or quantized by "
                                 "torchao or quanto. Call the model's own generate()")
        digest = xxhash.xxh3_128()
        for name, one in sorted({id(one): (names[id(one)], one) for one in state.tensors}.values(),
                                key=lambda named: named[0]):
            mark, sample, seen = marks[id(one)], _bytes_of(_view_of(one)), before.get(id(one))
            if seen is None or (seen.mark, seen.sample) != (mark, sample):
                seen = _Seen(weakref.ref(one), mark, sample, _digest_of(one))
            now[id(one)] = seen
            digest.update(f"{name} {one.dtype} {tuple(one.shape)}\n".encode() + seen.digest)
        self._seen = [now[id(one)] for one in state.tensors]
        fields: dict[str, FieldValue] = {"weights_xxh3": digest.hexdigest()}
        if state.adapters:
            fields["adapters_xxh3"] = xxhash.xxh3_128_hexdigest(
                "\n".join(state.adapters + _configs_of(self._model)).encode())
        # A random number names the hooks, because another process cannot know what their functions
        # do.
        if state.hooks:
            if state.hooks != self._hooks[0]:
                self._hooks = state.hooks, secrets.randbits(63)
            fields["hooks"] = self._hooks[1]
        return fields


def _state_of(model: Any) -> _State:
    """Visits the modules directly, because named_parameters() is too slow for each look()."""
    state, tensors, left = _State(), list[Any](), [model]
    while left:
        module = left.pop()
        if module is None:
            continue
        inside: dict[str, Any] = module.__dict__
        children: dict[str, Any] = inside["_modules"]
        # Read from __dict__, because torch.compile() makes it a property.
        if inside.get("training"):
            state.training = True
        if "forward" in inside and "_orig_mod" not in children:
            state.hooks.append(inside["forward"])  # the function itself: an id() may be reused
        if inside["_forward_hooks"] or inside["_forward_pre_hooks"]:
            # Ignores the hooks of transformers, which only copy outputs or request gradients.
            state.hooks += [number for hooks in (inside["_forward_hooks"],
                                                 inside["_forward_pre_hooks"])
                            for number, one in hooks.items()
                            if not str(getattr(one, "__module__", "")).startswith("transformers.")]
        if hasattr(module.__class__, "adapter_layer_names"):  # a PEFT layer
            if module._disable_adapters and not module.merged_adapters:
                children = {key: child for key, child in children.items()
                            if key not in module.adapter_layer_names}
            else:
                state.adapters.append(f"{module._active_adapter} {module._disable_adapters} "
                                      f"{module.merged_adapters} {inside.get('scaling')}")
        # Checks before looping: most dictionaries are empty, and this makes the walk fast.
        if inside["_parameters"]:
            tensors += inside["_parameters"].values()
        if inside["_buffers"]:
            tensors += inside["_buffers"].values()
        if children:
            left += children.values()
    state.tensors = [one for one in tensors if one is not None]
    return state


def _check_adapters(model: Any) -> None:
    for name, config in getattr(model, "peft_config", {}).items():
        kind = str(getattr(config.peft_type, "value", config.peft_type))
        if config.is_prompt_learning or kind in _WHOLE_PROMPT or \
                getattr(config, "alora_invocation_tokens", None):
            raise ValueError(f"adapter {name} has the unsupported kind {kind}: its keys and values "
                             "depend on more than the tokens before them. Delete the adapter, or "
                             "call the model's own generate()")


def _check_layers(model: Any) -> None:
    for name, layer in model.named_modules():
        inside: dict[str, Any] = layer.__dict__
        own = inside["_parameters"]
        if "_packed_params" in inside or ("W_q" in own and "meta" in inside) or any(
                hasattr(one, "quant_state") or hasattr(one, "SCB") for one in own.values()):
            raise ValueError(f"{name} cannot be hashed: it has weights outside its parameters and "
                             "buffers, like layers of torch.ao, bitsandbytes and HQQ. Call the "
                             "model's own generate()")


def _configs_of(model: Any) -> list[str]:
    made: list[str] = []
    for name, config in sorted(getattr(model, "peft_config", {}).items()):
        kept: dict[str, Any] = {key: value for key, value in config.to_dict().items()
                                if key not in _IGNORED}
        for key, value in kept.items():
            # Sorted, because the order of a set differs between processes.
            if isinstance(value, (set, frozenset)):
                kept[key] = sorted(map(str, cast("set[Any]", value)))
        made.append(name + json.dumps(kept, sort_keys=True, default=str))
    return made


def _span_of(tensor: Any) -> Optional[tuple[int, int]]:
    if tensor.device.type != "cpu":
        return None
    view = _view_of(tensor)
    return view.data_ptr(), view.numel()


def _view_of(tensor: Any) -> Any:
    """Returns a view of the bytes that are sampled from a tensor."""
    storage, size = tensor.untyped_storage(), tensor.element_size()
    first = tensor.storage_offset() * size
    # Fewer bytes than numel() * size if a stride is 0.
    whole = min(tensor.numel() * size, storage.nbytes() - first)
    taken = min(SAMPLE_BYTES, whole)
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
        storage, first + (whole - taken) // 2, (taken,), (1,))


def _bytes_of(tensor: Any) -> bytes:
    return bytes(tensor.cpu().numpy().data)


def _digest_of(tensor: Any) -> bytes:
    plain = tensor.detach().cpu().contiguous().flatten()
    return xxhash.xxh3_128_digest(plain.view(torch.uint8).numpy().data if plain.numel() else b"")
