"""HearthConnector: extends vLLM's prefix cache by a store that processes and hosts share.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "HearthConnector",
      "kv_connector_module_path": "hearth_cache.vllm", "kv_role": "kv_both",
      "kv_load_failure_policy": "recompute",
      "kv_connector_extra_config": {"store": "127.0.0.1:7080"}}'

Pages are stored as the engine wrote them. Engines share pages if their fingerprints, which name
everything that decides the bytes, are equal. Requests with adapters, images or embeddings are not
stored or restored.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, Optional

import xxhash

from hearth_cache._calls import Access
from hearth_cache._engines import config_sha256
from hearth_cache._exchange import Prefix
from hearth_cache._paging import (
    DevicePages, HostPages, Mover, Planner, Step, hints_of, pages_of)
from hearth_cache.layout import FieldValue, Fingerprint, PageLayout
from hearth_cache.store import Store

# Imported by name: strict type checkers do not know most of its types.
torch: Any = importlib.import_module("torch")
vllm: Any = importlib.import_module("vllm")
_base: Any = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.v1.base")
_specs: Any = importlib.import_module("vllm.v1.kv_cache_interface")

_SUBJECTS = {"store", "tenant", "tls_ca", "tls_cert", "tls_key", "token_file", "plaintext_tokens"}
_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf", "*.pt")


class HearthConnector(
        _base.KVConnectorBase_V1, _base.SupportsHMA):  # type: ignore[misc]
    """Connects vLLM to a store. vLLM makes one connector for its scheduler and one for each worker.
    `kv_connector_extra_config` has `store` (an address) and optionally `tenant` and the fields of
    Access."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        _base.KVConnectorBase_V1.__init__(self, vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        extra: dict[str, Any] = transfer.kv_connector_extra_config
        if transfer.kv_load_failure_policy != "recompute":
            raise ValueError('kv_load_failure_policy must be "recompute"; with '
                             f'"{transfer.kv_load_failure_policy}" a failed load ends a request')
        if "store" not in extra or extra.keys() - _SUBJECTS:
            raise ValueError("kv_connector_extra_config must have store, and may have "
                             f"{', '.join(sorted(_SUBJECTS))}; got {sorted(extra)}")
        _check(vllm_config)
        access = Access(**{name: value for name, value in extra.items()
                           if name not in ("store", "tenant")})
        store = Store(extra["store"], access=access, retries=0)
        store.connect()
        self._tenant: str = extra.get("tenant", "")
        self._ranks: int = vllm_config.parallel_config.tensor_parallel_size
        self._layout, self._names, self._groups = _layout_of(kv_cache_config)
        self._store, self._step = store, Step()
        self._mover: Mover  # only in a worker
        self._rank: int = vllm_config.parallel_config.rank % self._ranks
        self._fields = _fields_of(vllm_config, kv_cache_config)
        self._print_of = functools.lru_cache(maxsize=64)(self._make_print)
        self._schedules: bool = role == _base.KVConnectorRole.SCHEDULER
        self._planner = Planner(store, self._layout.chunk_tokens, lambda ids, salt, epoch: [
            self._prefix_of(rank, ids, salt, epoch) for rank in range(self._ranks)])
        self._closing = [self._planner.close]

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # vLLM need not wait: a lost save only causes a later miss

    def _prefix_of(self, rank: int, token_ids: Sequence[int], salt: str,
                   epoch: int = 0) -> Prefix:
        return Prefix(self._print_of(rank, salt, epoch), token_ids, tenant=self._tenant)

    def _make_print(self, rank: int, salt: str, epoch: int) -> Fingerprint:
        return Fingerprint.of(self._layout, {
            **self._fields, "tp_rank": rank, **({"salt": salt} if salt else {}),
            **({"epoch": epoch} if epoch else {})})

    # --- the scheduler's side ---

    def reset_cache(self) -> bool:
        """vLLM's scheduler calls this for reset_prefix_cache(reset_connector=True), and when it
        pauses or sleeps. The weights may have changed in memory, so a new epoch begins; workers
        learn of it in the next step. Returns false in a worker."""
        if self._schedules:
            self._planner.begin_epoch()
        return self._schedules

    def on_new_request(self, request: Any) -> None:
        # The salt isolates callers from each other. A request whose salt has a wrong type shares
        # nothing.
        alone = request.lora_request is not None or request.mm_features or \
            getattr(request, "prompt_embeds", None) is not None or \
            not isinstance(request.cache_salt or "", str)
        if request.prompt_token_ids and not alone:
            self._planner.begin(request.request_id, request.prompt_token_ids,
                                request.cache_salt or "",
                                reads=not request.skip_reading_prefix_cache,
                                hints=hints_of(request))

    def get_num_new_matched_tokens(self, request: Any,
                                   num_computed_tokens: int) -> tuple[Optional[int], bool]:
        return self._planner.matched(request.request_id, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any,
                                 num_external_tokens: int) -> None:
        self._planner.allocated(request.request_id, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        cached = scheduler_output.scheduled_cached_reqs
        begins = {one.req_id: one.num_computed_tokens
                  for one in scheduler_output.scheduled_new_reqs}
        begins.update(zip(cached.req_ids, cached.num_computed_tokens))
        scheduled = scheduler_output.num_scheduled_tokens.items()
        return self._planner.step(
            [(name, begins[name], begins[name] + tokens) for name, tokens in scheduled],
            scheduler_output.kv_connector_block_state.get_block_ids)

    def update_connector_output(self, connector_output: Any) -> None:
        self._planner.failed(connector_output.failed_recving or ())

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        self._planner.end(request.request_id)
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return self.request_finished(request, block_ids)

    # --- the worker's side ---

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        pages = [pages_of(kv_caches[name], name, self._kv_cache_config.num_blocks,
                          self._layout.page_bytes) for name in self._names]
        memory = HostPages(pages) if pages[0].device.type == "cpu" \
            else DevicePages(pages, torch.get_device_module(pages[0].device))
        self._mover = Mover(self._store, self._layout, self._groups, memory,
                            functools.partial(self._prefix_of, self._rank))
        self._closing.append(self._mover.close)

    def start_load_kv(self, forward_context: Any, **unused: Any) -> None:
        self._step = self._get_connector_metadata()
        self._mover.begin(self._step)

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any,
                      **unused: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        for save in self._get_connector_metadata().saves:
            self._mover.save(save)

    def get_transfer_results(self, finished_req_ids: Iterable[str]) -> Any:
        done, failed = self._mover.results(finished_req_ids, self._step.idle)
        return _base.KVConnectorTransferResults(finished_recving=done, failed_recving=failed)

    def shutdown(self) -> None:
        for close in (*self._closing, self._store.close):
            close()


def _check(config: Any) -> None:
    parallel = config.parallel_config
    for name in ("pipeline_parallel_size", "decode_context_parallel_size",
                 "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) != 1:
            raise ValueError(f"{name} must be 1; got {getattr(parallel, name)}")
    if config.speculative_config is not None:
        raise ValueError("speculative_config is not supported: remove it")


def _layout_of(config: Any) -> tuple[PageLayout, list[str], list[int]]:
    """Returns the layout, the names of the layers in order, and each layer's group number."""
    layers: list[tuple[str, Any, int]] = []
    for number, group in enumerate(config.kv_cache_groups):
        spec = group.kv_cache_spec
        each: dict[str, Any] = getattr(spec, "kv_cache_specs", None) or {}
        layers += [(name, each.get(name, spec), number) for name in group.layer_names]
    layers.sort(key=lambda layer: [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", layer[0])])
    kinds = ""
    for name, spec, _ in layers:
        if not isinstance(spec, (_specs.SlidingWindowSpec, _specs.FullAttentionSpec)):
            raise ValueError(f"layer {name} must have full attention or a sliding window; got "
                             f"{type(spec).__name__}")
        kinds += "l" if isinstance(spec, _specs.SlidingWindowSpec) else "g"
    windows = {spec.sliding_window for (_, spec, _), kind in zip(layers, kinds) if kind == "l"}
    shapes = {(spec.block_size, spec.page_size_bytes) for _, spec, _ in layers}
    if len(shapes) != 1 or len(windows) > 1:
        raise ValueError("all layers must have the same (block size, page bytes) and window; got "
                         f"{sorted(shapes)} and {sorted(windows)}")
    (block_tokens, page_bytes), = shapes
    if block_tokens & (block_tokens - 1) or not 16 <= block_tokens <= 1024:
        raise ValueError(f"block_size must be a power of two from 16 to 1024; got {block_tokens}")
    return (PageLayout(kinds, max(windows, default=0), page_bytes, block_tokens),
            [name for name, _, _ in layers], [group for _, _, group in layers])


def _fields_of(config: Any, caches: Any) -> dict[str, FieldValue]:
    """Returns fields for everything that determines the bytes of a page, except layout, rank and
    tokens."""
    model, parallel = config.model_config, config.parallel_config
    platform = importlib.import_module("vllm.platforms").current_platform
    on_cpu: bool = platform.is_cpu()
    isa = f"{torch.backends.cpu.get_cpu_capability()}" \
        f"{' amx' if torch.cpu._is_amx_tile_supported() else ''}" if on_cpu \
        else f"{platform.get_device_name()} {platform.get_device_capability()}"
    return {
        "engine": "vllm", "engine_version": str(vllm.__version__),
        "torch": str(torch.__version__), "dtype": str(model.dtype).removeprefix("torch."),
        "cache_dtype": str(config.cache_config.cache_dtype),
        "quantization": str(model.quantization), "isa": isa,
        "page_layout": str(caches.kv_cache_layout),
        "attention": str(getattr(config.attention_config, "backend", None)),
        "kv_specs_sha256": hashlib.sha256(repr(sorted({
            re.sub(r" at 0x[0-9a-f]+", "", str(one.kv_cache_spec))
            for one in caches.kv_cache_groups})).encode()).hexdigest(),
        "config_sha256": config_sha256(model.hf_config.to_dict()),
        "weights_xxh3": _weights_digest(model), "tp_size": parallel.tensor_parallel_size,
        # Dummy weights are random, so no file determines them.
        **({"load_format": "dummy"} if config.load_config.load_format == "dummy" else {})}


def _weights_digest(model: Any) -> str:
    """Hashes the checkpoint's files, because a worker's memory has only a part of the weights."""
    folder = pathlib.Path(model.model)
    if not folder.exists():
        hub: Any = importlib.import_module("huggingface_hub")
        folder = pathlib.Path(hub.snapshot_download(model.model, revision=model.revision,
                                                    local_files_only=True))
    files = [folder] if folder.is_file() else \
        sorted(path for kind in _WEIGHTS for path in folder.glob(kind))
    if not files:
        raise ValueError(f"{folder}: must contain weights ({', '.join(_WEIGHTS)}) to hash")
    digest = xxhash.xxh3_128()
    for path in files:
        with open(path, "rb") as file:
            while piece := file.read(1 << 24):
                digest.update(piece)
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
    return digest.hexdigest()
