// KvCache: the keys and values of one sequence, for all layers of a model, with torch.
//
// Thread safety: none. One thread at a time uses a KvCache; different caches are independent.
// Ownership: owns its memory on the model's device. Movable, not copyable: a copy costs as much as
// a restore; use CopyOut and CopyIn.
// Invariants:
//   1. The rows of positions [0, length()) are computed. Keys are stored after RoPE; positions are
//   absolute.
//   2. A global layer has rows [0, length()), a local layer [first_held(layer), length()), where
//      first_held(layer) <= max(0, length() - (W-1)); W includes the current token.
//   3. The results of a later step depend only on the values of these rows: not on the capacity, on
//      their addresses, or on whether the rows were computed or copied in.
#ifndef HEARTH_WORKER_MODEL_TORCH_KV_CACHE_H_
#define HEARTH_WORKER_MODEL_TORCH_KV_CACHE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "worker/model/sequence_kv.h"

namespace hearth {

class Gemma;
// defined in kv_cache_rep.h, which is private to hearth_model, because it includes ATen
struct KvCacheRep;

class KvCache : public SequenceKv {
 public:
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;
  ~KvCache() override;

  int length() const override;
  // Returns the maximum number of tokens.
  int capacity() const;
  int num_layers() const;
  // Returns the bytes of one token's keys and values in one layer.
  int64_t token_bytes() const;

  uint64_t held_bytes(int from) const override {
    uint64_t rows = 0;
    for (int i = 0; i < num_layers(); ++i) {
      rows += static_cast<uint64_t>(std::max(0, length() - std::max(from, first_held(i))));
    }
    return rows * static_cast<uint64_t>(token_bytes());
  }
  int first_held(int layer) const override;
  void CopyOut(int layer, int begin, int end, int slice_begin, int slice_tokens,
               std::byte* slice) const override;

  // To restore `length` tokens: call BeginRestore(length); then CopyIn for every layer, in any
  // order; then FinishRestore(length). Local layers then have exactly the last min(length, W-1)
  // rows. REQUIRES: 0 <= length <= capacity().
  void BeginRestore(int length);
  // Copies rows from a slice to the cache; the inverse of CopyOut. A local layer takes only rows
  // [first_held(layer), length). May also be called after FinishRestore, until a Step reads the
  // layer. `on_device`: the slice is in memory of the cache's device and must not change until
  // FinishRestore returns. REQUIRES: BeginRestore was called; first_held(layer) <= begin <= end <=
  // the restored length.
  void CopyIn(int layer, int begin, int end, int slice_begin, int slice_tokens,
              const std::byte* slice, bool on_device = false);
  void FinishRestore(int length);
  // Waits for the copies of CopyIn calls. FinishRestore includes this.
  void AwaitCopies();

  // Sets the length to 0 and keeps the memory, because the first write to new memory is slow.
  void Reset();

 private:
  friend class Gemma;
  explicit KvCache(std::unique_ptr<KvCacheRep> rep);
  std::unique_ptr<KvCacheRep> rep_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_TORCH_KV_CACHE_H_
