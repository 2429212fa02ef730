#include "worker/model/torch/kv_cache.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>
#include <utility>

#include "worker/model/torch/kv_cache_rep.h"

namespace hearth {
namespace {

// Rows of a block are rounded up to a multiple of this, so that heads with at least 4 float32
// columns are aligned to 64 bytes.
constexpr int kRowAlignment = 16;

int RoundUp(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// Moves rows [from, from + count) of each head to row 0, in a block in host memory. The source and
// destination may overlap.
void MoveToFront(at::Tensor* block, int from, int count) {
  const size_t row_bytes = block->size(2) * block->element_size();
  for (int64_t head = 0; head < block->size(0); ++head) {
    auto* base = static_cast<char*>(block->select(0, head).data_ptr());
    std::memmove(base, base + from * row_bytes, count * row_bytes);
  }
}

// Returns a view of the keys (half 0) or values (half 1) of a slice: [kv_heads, columns, head_dim].
at::Tensor SliceHalf(std::byte* slice, int half, int columns, const at::Tensor& block,
                     at::Device device = at::kCPU) {
  const int64_t half_bytes = block.size(0) * columns * block.size(2) * block.element_size();
  return at::for_blob(slice + half * half_bytes, {block.size(0), columns, block.size(2)})
      .options(at::TensorOptions().dtype(block.scalar_type()).device(device))
      .target_device(device)
      .make_tensor();
}

// Converts libtorch's out-of-memory error to std::bad_alloc, because callers do not know libtorch.
template <typename Work>
void WithBadAlloc(const Work& work) {
  try {
    work();
  } catch (const c10::OutOfMemoryError&) {
    throw std::bad_alloc();
  }
}

}  // namespace

int KvCacheRows(const ModelConfig& config, int layer, int capacity) {
  const int local = config.attention.sliding_window - 1 + kMaxStepTokens;
  return RoundUp(config.is_local(layer) ? std::min(capacity, local) : capacity, kRowAlignment);
}

KvCacheRep::KvCacheRep(const ModelConfig& config, int capacity_tokens, at::Device device,
                       at::ScalarType dtype)
    : capacity(capacity_tokens),
      window(config.attention.sliding_window),
      kv_heads(config.attention.num_kv_heads),
      head_dim(config.attention.head_dim) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  for (int i = 0; i < config.num_layers; ++i) {
    LayerKv layer;
    layer.local = config.is_local(i);
    const int rows = KvCacheRows(config, i, capacity);
    layer.keys = at::empty({kv_heads, rows, head_dim}, options);
    layer.values = at::empty({kv_heads, rows, head_dim}, options);
    layers.push_back(std::move(layer));
  }
}

void KvCacheRep::MakeRoom(LayerKv* layer, int tokens) {
  if (!layer->local) return;
  const int held = length - layer->first;
  const int keep = std::min(length, window - 1);
  const int drop = held - keep;
  assert(held >= keep);
  const bool aligned = head_dim * layer->keys.element_size() % 64 == 0;
  const bool fits = held + tokens <= layer->keys.size(1);
  // A single token reads its window in place as long as the block has free rows; otherwise each
  // decoded token would move W-1 rows.
  if (drop == 0 || (tokens == 1 && fits && aligned)) return;
  if (layer->keys.is_cpu()) {
    MoveToFront(&layer->keys, drop, keep);
    MoveToFront(&layer->values, drop, keep);
  } else {  // clone both tensors before writing: if an allocation fails, nothing has changed
    const at::Tensor keys = layer->keys.narrow(1, drop, keep).clone();
    const at::Tensor values = layer->values.narrow(1, drop, keep).clone();
    layer->keys.narrow(1, 0, keep).copy_(keys);
    layer->values.narrow(1, 0, keep).copy_(values);
  }
  assert(keep + tokens <= layer->keys.size(1));
  layer->first += drop;
}

KvCache::KvCache(std::unique_ptr<KvCacheRep> rep) : rep_(std::move(rep)) {}
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;
KvCache::~KvCache() = default;

int KvCache::length() const { return rep_->length; }
int KvCache::capacity() const { return rep_->capacity; }
int KvCache::num_layers() const { return static_cast<int>(rep_->layers.size()); }
int64_t KvCache::token_bytes() const {
  return int64_t{2} * rep_->kv_heads * rep_->head_dim * rep_->layers[0].keys.element_size();
}
int KvCache::first_held(int layer) const { return rep_->layers[layer].first; }

void KvCache::CopyOut(int layer, int begin, int end, int slice_begin, int slice_tokens,
                      std::byte* slice) const {
  const LayerKv& kv = rep_->layers[layer];
  assert(kv.first <= begin && begin <= end && end <= rep_->length);
  assert(slice_begin <= begin && end <= slice_begin + slice_tokens);
  if (begin == end) return;
  const c10::InferenceMode inference;
  for (int half = 0; half < 2; ++half) {
    const at::Tensor& block = half == 0 ? kv.keys : kv.values;
    WithBadAlloc([&] {
      SliceHalf(slice, half, slice_tokens, block)
          .narrow(1, begin - slice_begin, end - begin)
          .copy_(rep_->Rows(block, kv, begin, end));
    });
  }
}

void KvCache::BeginRestore(int length) {
  assert(length >= 0 && length <= rep_->capacity);
  rep_->length = 0;
  rep_->restoring = length;
  for (LayerKv& layer : rep_->layers) {
    layer.first = layer.local ? std::max(0, length - (rep_->window - 1)) : 0;
  }
}

void KvCache::CopyIn(int layer, int begin, int end, int slice_begin, int slice_tokens,
                     const std::byte* slice, bool on_device) {
  const LayerKv& kv = rep_->layers[layer];
  assert(kv.first <= begin && begin <= end && end <= std::max(rep_->restoring, rep_->length));
  assert(slice_begin <= begin && end <= slice_begin + slice_tokens);
  if (begin == end) return;
  const c10::InferenceMode inference;
  const at::Device device = on_device ? kv.keys.device() : at::Device(at::kCPU);
  if (!device.is_cpu()) rep_->copying_on_device = true;
  for (int half = 0; half < 2; ++half) {
    const at::Tensor& block = half == 0 ? kv.keys : kv.values;
    WithBadAlloc([&] {
      rep_->Rows(block, kv, begin, end)
          .copy_(SliceHalf(const_cast<std::byte*>(slice), half, slice_tokens, block, device)
                     .narrow(1, begin - slice_begin, end - begin));
    });
  }
}

void KvCache::FinishRestore(int length) {
  assert(length == rep_->restoring);
  (void)length;
  rep_->length = rep_->restoring;
  rep_->restoring = -1;
  AwaitCopies();
}

void KvCache::AwaitCopies() {
  if (!std::exchange(rep_->copying_on_device, false)) return;
  // A copy from host memory is complete when copy_ returns, but a copy within the device is only
  // enqueued; wait for it.
  const at::Device device = rep_->layers[0].keys.device();
  c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
}

void KvCache::Reset() {
  rep_->length = 0;
  rep_->restoring = -1;
  for (LayerKv& layer : rep_->layers) layer.first = 0;
}

}  // namespace hearth
