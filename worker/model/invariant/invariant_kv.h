// InvariantKv: the keys and values of one sequence of an InvariantGemma, in blocks.
//
// A block is an object of a whole chunk of one layer group (kv_blocks.h). Once its rows are done, a
// block is shared by reference; a restore adopts it by reference. A partial chunk is copied in both
// directions, so only this sequence holds rows that are still written.
//
// If whole chunks are quantized, the step that computes a chunk's last row seals the chunk: it
// writes a second block with fewer bits. Only sealed blocks are then shared and adopted. The next
// step drops the unsealed rows.
//
// Thread safety: none; one thread at a time.
// Ownership: shares its blocks. The InvariantGemma must outlive it. A moved-from Kv belongs to no
// model.
// Invariants:
//   1. Positions [0, length()) are done. Keys are stored after RoPE; positions are absolute.
//   2. If others may hold a block, its rows are below length() and are never written again.
//   3. If chunks are sealed, exactly the chunks before row length()'s chunk have a sealed block;
//      MakeRoom takes a step's sealed blocks in advance.
//   4. A row that is not held, or was rewound, is never read for its value: its memory may contain
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
#include "worker/model/sequence_kv.h"

namespace hearth {

// Layout of a chunk's rows in its block.
//
// Thread safety: pure functions.

// Copies columns [begin, begin + count) of a slice with `from_tokens` columns to columns from
// `to_begin` on of a slice with `to_tokens` columns. Each half (K, V) and KV head is one run of
// rows.
inline void CopyColumns(BlockMemory* memory, CopyWay way, const KvLayout& layout,
                        const std::byte* from, int from_tokens, int begin, int count, std::byte* to,
                        int to_tokens, int to_begin) {
  const size_t row_bytes = layout.head_dim * KvDtypeBytes(layout.dtype);
  const auto bytes = [row_bytes](int rows) { return static_cast<size_t>(rows) * row_bytes; };
  CopyRuns runs = {bytes(count), size_t{2} * layout.kv_heads, bytes(from_tokens), bytes(to_tokens)};
  if (count == from_tokens && count == to_tokens) runs = {runs.bytes * runs.count};
  memory->Copy(way, to + bytes(to_begin), from + bytes(begin), runs);
}

// Returns the index of a layer among the layers of its group.
inline size_t LayersBefore(const KvLayout& layout, int layer) {
  const auto at = layout.layers.begin() + layer;
  return static_cast<size_t>(std::count(layout.layers.begin(), at, *at));
}

// Returns the bytes of one chunk's unsealed rows, in all layers of a group.
inline size_t PlainBytes(const KvLayout& layout, LayerGroup group) {
  return layout.LayerCount(group) * layout.PlainSliceBytes(layout.chunk_tokens);
}

// Returns the number of splits that hold the rows [0, length).
inline size_t SplitsTo(const KvLayout& layout, int length) {
  return (static_cast<size_t>(length) + layout.chunk_tokens - 1) / layout.chunk_tokens;
}

class InvariantKv : public SequenceKv {
 public:
  InvariantKv() = default;
  InvariantKv(InvariantKv&& other) noexcept = default;
  InvariantKv& operator=(InvariantKv&& other) noexcept = default;
  // `model`: number of the model that makes it, above 0. `layout`: includes the quantization of
  // whole chunks, if any. The arena must outlive the Kv.
  InvariantKv(std::shared_ptr<const KvLayout> layout, KvBlocks* arena, uint64_t model);

  int length() const override { return length_; }
  int first_held(int layer) const override;
  uint64_t held_bytes(int from) const override;
  void CopyOut(int layer, int begin, int end, int slice_begin, int slice_tokens,
               std::byte* slice) const override;
  std::shared_ptr<std::byte[]> Share(const ObjectId& id) const override;
  bool is_on_device() const override { return arena_->memory().is_on_device(); }

  // The next step takes this many blocks, and later steps use them: while they suffice, no step
  // takes other memory. Blocks that the window leaves are reused. REQUIRES: nothing is quantized.
  void ReserveBlocks(size_t global_blocks, size_t local_blocks);

  // To restore `length` tokens, call BeginRestore; then Adopt or CopyIn for each object that the
  // length needs; then FinishRestore. Local layers then hold all rows of these objects. After an
  // error, BeginRestore makes the Kv usable again.
  void BeginRestore(int length);
  // Adopts an object of a whole chunk by reference.
  absl::Status Adopt(const ObjectId& id, KvBlock bytes);
  // Copies an object. `slices`: the slices of its group's layers, ascending by layer, in host
  // memory; with `within`, in the device's memory.
  absl::Status CopyIn(const ObjectId& id, const std::vector<const std::byte*>& slices,
                      bool within = false);
  void FinishRestore();

  // All rows will use the adapter. REQUIRES: the Kv is empty; the adapter belongs to the same
  // model.
  void UseAdapter(std::shared_ptr<const LoraAdapter> adapter);
  const std::shared_ptr<const LoraAdapter>& adapter() const { return adapter_; }

  // Makes this Kv a copy of `other` that shares its blocks. If a partly filled block still has
  // other holders when this Kv writes to it, the block is copied first. REQUIRES: the same model
  // and adapter.
  void ShareAll(const InvariantKv& other);

  // Called by the model. Makes room for `tokens` more rows of all layers, and drops blocks that no
  // row sees any more. kResourceExhausted: there is no memory; no needed row is lost. After a
  // success it may be called again with the same or a smaller `tokens`.
  absl::Status MakeRoom(int tokens);
  // Releases blocks without any row, and sealed blocks of incomplete chunks: the room of a step
  // that is not computed, or of rewound rows.
  void ReleaseRoom();
  // Returns the address of each split of a layer, null if dropped; valid until the next MakeRoom.
  std::vector<const std::byte*> SplitsOf(int layer) const {
    return SlicesOf(layer, blocks_, false);
  }
  // Returns the address of each block of a group, null if dropped; valid until the next MakeRoom.
  std::vector<std::byte*> BlocksOf(LayerGroup group) const;
  // As SplitsOf, for sealed blocks.
  std::vector<const std::byte*> SealedOf(int layer) const { return SlicesOf(layer, sealed_, true); }
  // Returns whether whole chunks are sealed.
  bool seals() const { return layout_->quantization.is_on(); }
  // Returns a layer's slice of a sealed block. REQUIRES: the block exists.
  std::byte* SealedAt(int layer, size_t split);
  // Returns a layer's slice of the block that holds `position`. REQUIRES: there is room for
  // `position`.
  std::byte* SliceAt(int layer, int position);
  // Sets the length back: later rows will be computed again; earlier rows stay. REQUIRES: no
  // other holder has blocks with rows from `length` on.
  void Rewind(int length) { length_ = length; }
  // Adds rows that all layers have computed.
  void Advance(int tokens) { length_ += tokens; }
  uint64_t model() const { return layout_ == nullptr ? 0 : model_; }  // 0: no model
  const KvLayout& layout() const { return *layout_; }

 private:
  LayerGroup GroupOf(int layer) const { return layout_->layers[static_cast<size_t>(layer)]; }
  using SplitBlocks = std::array<std::vector<KvBlock>, 2>;  // by group and split
  std::vector<const std::byte*> SlicesOf(int layer, const SplitBlocks& blocks, bool sealed) const;
  const std::vector<KvBlock>& WholeBlocks(LayerGroup group) const {
    return (seals() ? sealed_ : blocks_)[static_cast<size_t>(group)];
  }
  void DropUnseen();
  void Drop(LayerGroup group, KvBlock* block);
  // Puts a block of `bytes` bytes at `split`; copies the bytes of the block it replaces.
  void Put(KvBlock block, size_t split, size_t bytes, std::vector<KvBlock>* blocks);

  std::shared_ptr<const KvLayout> layout_;  // null: moved from
  KvBlocks* arena_ = nullptr;
  uint64_t model_ = 0;
  std::shared_ptr<const LoraAdapter> adapter_;  // null: no adapter
  SplitBlocks blocks_;                          // null: dropped by the window, or sealed
  SplitBlocks sealed_;                          // null: dropped by the window
  SplitBlocks spare_;                           // taken in advance, by group
  std::array<size_t, 2> ahead_{};               // blocks that the next step takes in all, by group
  bool keeps_spare_ = false;                    // reuse blocks that the window leaves
  int length_ = 0, restoring_ = 0;
  bool shares_end_ = false;  // the partly filled block may have other holders
  int first_local_ = 0;      // first row that local layers hold
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_KV_H_
