// InvariantKv: the keys and values of one sequence of an InvariantGemma, in KV blocks.
//
// A KV block has the rows of one chunk in all layers of one layer group (kv_blocks.h). When all its
// rows are computed, a block is shared by reference, and a restore adopts it by reference.
// Incomplete chunks are copied instead, so rows that may still change belong to one sequence only.
//
// If KV quantization is on, the step that computes the last row of a chunk also seals the chunk: it
// writes a quantized copy to a second block. Only sealed blocks are shared and adopted. The next
// step drops the unsealed block.
//
// On a device, a restore copies objects layer by layer while other sequences run steps. The
// sequence's first step waits for each layer (AwaitRestore). Its second step releases the objects.
//
// An offloaded sequence on a device keeps the complete chunks of global layers in host memory; a
// step copies them to the device (worker/model/invariant/kv_staging.h). Local layers stay on the
// device, because they never exceed the window. MakeRoom moves the chunks that earlier steps
// completed. If the host budget is exhausted, further chunks stay on the device.
//
// Thread safety: none; one thread at a time.
// Ownership: shares ownership of its blocks. The InvariantGemma must outlive the InvariantKv. A
// moved-from InvariantKv cannot be used.
// Invariants:
//   1. The rows of positions [0, length()) are computed. Keys are stored after RoPE; positions are
//      absolute.
//   2. A block that others may hold has only rows below length(), which are never written again.
//   3. If chunks are sealed, exactly the complete chunks below length() have a sealed block.
//   4. Rows that were dropped or rewound are never read for their values; they may contain
//      anything.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_KV_H_
#define HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_KV_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/kv_layout.h"
#include "worker/model/invariant/kv_blocks.h"
#include "worker/model/invariant/lora_adapter.h"
#include "worker/model/invariant/transfers.h"
#include "worker/model/sequence_kv.h"

namespace hearth {

// Functions for the layout of a chunk's rows in a KV block.
//
// Thread safety: pure functions.

// Copies token columns [begin, begin + count) of a slice with `from_tokens` columns to a slice with
// `to_tokens` columns, beginning at its column `to_begin`. For each of K, V and each KV head, this
// is one contiguous run of rows. `copier`: a BlockMemory or Transfers.
template <typename Copier>
void CopyColumns(Copier* copier, CopyWay way, const KvLayout& layout, const std::byte* from,
                 int from_tokens, int begin, int count, std::byte* to, int to_tokens,
                 int to_begin) {
  const size_t row_bytes = layout.head_dim * KvDtypeBytes(layout.dtype);
  const auto bytes = [row_bytes](int rows) { return static_cast<size_t>(rows) * row_bytes; };
  CopyRuns runs = {bytes(count), size_t{2} * layout.kv_heads, bytes(from_tokens), bytes(to_tokens)};
  if (count == from_tokens && count == to_tokens) runs = {runs.bytes * runs.count};
  copier->Copy(way, to + bytes(to_begin), from + bytes(begin), runs);
}

// Returns the number of earlier layers in the same layer group.
inline size_t LayersBefore(const KvLayout& layout, int layer) {
  const auto at = layout.layers.begin() + layer;
  return static_cast<size_t>(std::count(layout.layers.begin(), at, *at));
}

// Returns the bytes of an unsealed block: one chunk, all layers of a group.
inline size_t PlainBytes(const KvLayout& layout, LayerGroup group) {
  return layout.LayerCount(group) * layout.PlainSliceBytes(layout.chunk_tokens);
}

// Returns the number of KV blocks for the rows [0, length).
inline size_t SplitsTo(const KvLayout& layout, int length) {
  return (static_cast<size_t>(length) + layout.chunk_tokens - 1) / layout.chunk_tokens;
}

class InvariantKv : public SequenceKv {
 public:
  InvariantKv() = default;
  InvariantKv(InvariantKv&& other) noexcept = default;
  InvariantKv& operator=(InvariantKv&& other) noexcept = default;
  // `model`: number of the model that creates this Kv, above 0. `layout`: includes the KV
  // quantization. The arena must outlive the Kv.
  InvariantKv(std::shared_ptr<const KvLayout> layout, KvBlocks* arena, uint64_t model);

  int length() const override { return length_; }
  int first_held(int layer) const override;
  uint64_t held_bytes(int from) const override;
  void CopyOut(int layer, int begin, int end, int slice_begin, int slice_tokens,
               std::byte* slice) const override;
  std::shared_ptr<std::byte[]> Share(const ObjectId& id) const override;
  bool is_on_device() const override { return arena_->memory().is_on_device(); }
  bool IsOffloaded(const ObjectId& id) const override;
  std::unique_ptr<RowCopies> StartCopyOut(const ObjectId& id, int begin, int end,
                                          std::byte* bytes) const override;

  // The next step allocates this many blocks in advance for later steps. As long as they suffice,
  // no later step allocates memory; blocks that leave the sliding window are reused. REQUIRES: KV
  // quantization is off.
  void ReserveBlocks(size_t global_blocks, size_t local_blocks);

  // From the next step or restore on, the sequence is offloaded. `host`: allocates the blocks in
  // host memory; must outlive the Kv. REQUIRES: is_on_device(); KV quantization is off.
  void Offload(KvBlocks* host);
  bool is_offloaded() const { return host_ != nullptr; }

  // To restore `length` tokens: call BeginRestore; then Adopt or CopyIn for each object that this
  // length needs; then FinishRestore. Local layers then have all rows of these objects. After an
  // error, call BeginRestore before any other use.
  void BeginRestore(int length);
  // Adds an object of a complete chunk by reference. `bytes` is in the memory of this Kv's blocks,
  // or, if `from_host`, in host memory. REQUIRES: `from_host` only if the Kv is offloaded and the
  // object belongs to global layers.
  absl::Status Adopt(const ObjectId& id, KvBlock bytes, bool from_host = false);
  // Adds a copy of an object. `slices`: the slices of the layers in the object's group, in
  // ascending order of layer; in host memory, or if `within` in device memory. `owner`: on a
  // device, keeps the slices until they are copied.
  absl::Status CopyIn(const ObjectId& id, const std::vector<const std::byte*>& slices,
                      bool within = false, std::shared_ptr<const void> owner = nullptr);
  void FinishRestore();
  // Makes later launches on the device wait until the layers up to `layer` are restored.
  void AwaitRestore(int layer) const {
    if (arrivals_ != nullptr) arrivals_->MakeStepsWait(static_cast<size_t>(layer));
  }

  // Sets the LoRA adapter for all rows. REQUIRES: the Kv is empty; the adapter belongs to the same
  // model.
  void UseAdapter(std::shared_ptr<const LoraAdapter> adapter);
  const std::shared_ptr<const LoraAdapter>& adapter() const { return adapter_; }

  // Makes this Kv a copy of `other` that shares its blocks. If an incomplete block is still shared
  // when this Kv writes to it, the block is copied first. REQUIRES: both have the same model and
  // adapter.
  void ShareAll(const InvariantKv& other);

  // Called by the model. Allocates blocks for `tokens` more rows in all layers, and drops blocks to
  // which no row attends any more. kResourceExhausted: there is too little memory; no needed row is
  // lost. After a success it may be called again with the same or a smaller `tokens`.
  absl::Status MakeRoom(int tokens);
  // Releases the blocks after length(): blocks without rows, and sealed blocks of incomplete
  // chunks. Call if a step is not computed, or after Rewind.
  void ReleaseRoom();
  // Returns the address of each block of a layer, null if dropped. Valid until the next MakeRoom.
  std::vector<const std::byte*> SplitsOf(int layer) const {
    return SlicesOf(layer, blocks_, false);
  }
  // Returns the address of each block of a layer group, null if dropped or offloaded. Valid until
  // the next MakeRoom.
  std::vector<std::byte*> BlocksOf(LayerGroup group) const;
  // Returns the address of each sealed block of a layer group, null if dropped. Valid until the
  // next MakeRoom.
  std::vector<std::byte*> SealedBlocksOf(LayerGroup group) const;
  // Returns the host address of each offloaded block of global layers, null if not offloaded. Valid
  // until the next MakeRoom.
  std::vector<const std::byte*> OffloadedBlocks() const;
  // Returns the address of each sealed block of a layer, null if dropped. Valid until the next
  // MakeRoom.
  std::vector<const std::byte*> SealedOf(int layer) const { return SlicesOf(layer, sealed_, true); }
  // Returns whether complete chunks are sealed (KV quantization is on).
  bool seals() const { return layout_->quantization.is_on(); }
  // Returns the address of a layer's slice in a sealed block. REQUIRES: the block exists.
  std::byte* SealedAt(int layer, size_t split);
  // Returns the address of a layer's slice in the block with `position`. REQUIRES: MakeRoom has
  // allocated the block.
  std::byte* SliceAt(int layer, int position);
  // Reduces the length; the rows from `length` on will be computed again. REQUIRES: nothing else
  // holds blocks with rows from `length` on.
  void Rewind(int length) { length_ = length; }
  // Increases the length by rows that all layers have computed.
  void Advance(int tokens) { length_ += tokens; }
  uint64_t model() const { return layout_ == nullptr ? 0 : model_; }  // 0: no model
  const KvLayout& layout() const { return *layout_; }

 private:
  // An object that a restore copies.
  struct Incoming {
    ObjectId id;
    std::vector<const std::byte*> slices;
    CopyWay way;
    KvBlock block;
    std::shared_ptr<const void> owner;
  };
  template <typename Copier>
  void CopySlice(Copier* copier, const Incoming& object, size_t index) const;
  template <typename Copier>
  void CopyOutWith(Copier* copier, int layer, int begin, int end, int slice_begin, int slice_tokens,
                   std::byte* slice) const;
  void StartIncoming();
  void AwaitWholeRestore() const { AwaitRestore(static_cast<int>(layout_->layers.size()) - 1); }
  LayerGroup GroupOf(int layer) const { return layout_->layers[static_cast<size_t>(layer)]; }
  using SplitBlocks = std::array<std::vector<KvBlock>, 2>;  // [group][split]
  std::vector<const std::byte*> SlicesOf(int layer, const SplitBlocks& blocks, bool sealed) const;
  const std::vector<KvBlock>& WholeBlocks(LayerGroup group) const {
    return (seals() ? sealed_ : blocks_)[static_cast<size_t>(group)];
  }
  void DropUnseen();
  absl::Status OffloadCompleted();
  // Returns whether the block is in the host memory of an offloaded sequence.
  bool IsOnHost(const KvBlock& block) const { return host_ != nullptr && host_->Owns(block); }
  void Drop(LayerGroup group, KvBlock* block);
  // Stores `block`, of `bytes` bytes, at index `split`. If it replaces another block, copies that
  // block's bytes to it.
  void Put(KvBlock block, size_t split, size_t bytes, std::vector<KvBlock>* blocks);

  std::shared_ptr<const KvLayout> layout_;  // null if moved from
  KvBlocks* arena_ = nullptr;
  KvBlocks* host_ = nullptr;  // not null: offloaded
  uint64_t model_ = 0;
  std::shared_ptr<const LoraAdapter> adapter_;  // null: no LoRA adapter
  SplitBlocks blocks_;             // null: dropped, because out of the window or sealed
  SplitBlocks sealed_;             // sealed blocks; null: dropped, because out of the window
  SplitBlocks spare_;              // blocks allocated in advance, by layer group
  std::array<size_t, 2> ahead_{};  // number of blocks to allocate in the next step, by layer group
  bool keeps_spare_ = false;       // whether blocks that leave the window are reused
  int length_ = 0, restoring_ = 0;
  bool shares_end_ = false;         // whether the incomplete last block may be shared
  int first_local_ = 0;             // first position that local layers have
  std::vector<Incoming> incoming_;  // on a device: objects that FinishRestore will copy
  std::shared_ptr<Transfers>
      arrivals_;  // copies of the last restore, an event for each layer; or null
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_KV_H_
