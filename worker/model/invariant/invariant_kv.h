// InvariantKv: the keys and values of one sequence of an InvariantGemma, in blocks.
//
// A block is an object of a whole chunk, of one layer group (kv_blocks.h): it is shared by
// reference once its rows are done, and taken by reference in a restore. A remainder is copied both
// ways, so that rows that are still written belong to this sequence alone.
//
// Where whole chunks are quantized, one is sealed in the step that computes its last row: a block
// of fewer bits is made of it, which is what is given and taken, and the rows as they are go with
// the next step.
//
// Thread safety: none; one thread at a time uses it.
// Ownership: shares its blocks; the InvariantGemma must outlive it. Once moved from, of no model.
// Invariants:
//   1. Positions [0, length()) are done. Keys are stored after RoPE, positions are absolute.
//   2. The rows of a block that others may hold are below length(), and never written again.
//   3. Of a chunk before that of row length(), and of no other, there is a sealed block, where
//      chunks are sealed; MakeRoom takes it ahead.
//   4. A row that is not held, or was forgotten, is never read for its value: its memory may be
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

// Where the rows of a chunk lie in its block, and how many bytes they are.
//
// Thread safety: pure functions.

// Columns [begin, begin + count) of a slice of `from_tokens` columns to those from `to_begin` on of
// one of `to_tokens`: a run of rows for each half and KV head.
inline void CopyColumns(BlockMemory* memory, CopyWay way, const KvLayout& layout,
                        const std::byte* from, int from_tokens, int begin, int count, std::byte* to,
                        int to_tokens, int to_begin) {
  const size_t row_bytes = layout.head_dim * KvDtypeBytes(layout.dtype);
  const auto bytes = [row_bytes](int rows) { return static_cast<size_t>(rows) * row_bytes; };
  CopyRuns runs = {bytes(count), size_t{2} * layout.kv_heads, bytes(from_tokens), bytes(to_tokens)};
  if (count == from_tokens && count == to_tokens) runs = {runs.bytes * runs.count};
  memory->Copy(way, to + bytes(to_begin), from + bytes(begin), runs);
}

// A layer's place among those of its group.
inline size_t LayersBefore(const KvLayout& layout, int layer) {
  const auto at = layout.layers.begin() + layer;
  return static_cast<size_t>(std::count(layout.layers.begin(), at, *at));
}

// Of a chunk's rows as they are.
inline size_t PlainBytes(const KvLayout& layout, LayerGroup group) {
  return layout.LayerCount(group) * layout.PlainSliceBytes(layout.chunk_tokens);
}

// Those that rows up to `length` begin.
inline size_t SplitsTo(const KvLayout& layout, int length) {
  return (static_cast<size_t>(length) + layout.chunk_tokens - 1) / layout.chunk_tokens;
}

class InvariantKv : public SequenceKv {
 public:
  InvariantKv() = default;
  InvariantKv(InvariantKv&& other) noexcept = default;
  InvariantKv& operator=(InvariantKv&& other) noexcept = default;
  // `model`: the number of the model that made it, above 0. The arena must outlive it.
  // `layout`: with the quantization of whole chunks, where they are quantized.
  InvariantKv(std::shared_ptr<const KvLayout> layout, KvBlocks* arena, uint64_t model);

  int length() const override { return length_; }
  int first_held(int layer) const override;
  uint64_t held_bytes(int from) const override;
  void CopyOut(int layer, int begin, int end, int slice_begin, int slice_tokens,
               std::byte* slice) const override;
  std::shared_ptr<std::byte[]> Share(const ObjectId& id) const override;
  bool is_on_device() const override { return arena_->memory().is_on_device(); }

  // The next step takes so many blocks, and later steps use them: while they suffice, no step takes
  // other memory. Blocks that the window leaves are used again. REQUIRES: nothing is quantized.
  void ReserveBlocks(size_t global_blocks, size_t local_blocks);

  // A restore to `length` tokens is: BeginRestore; Adopt or CopyIn of each object that the length
  // needs; FinishRestore. Local layers then hold all rows of these objects.
  // After an error BeginRestore makes it usable again.
  void BeginRestore(int length);
  // Takes an object of a whole chunk by reference.
  absl::Status Adopt(const ObjectId& id, KvBlock bytes);
  // Copies an object; `slices` are those of its group's layers, ascending by layer, in the host's
  // memory, or `within` the device's.
  absl::Status CopyIn(const ObjectId& id, const std::vector<const std::byte*>& slices,
                      bool within = false);
  void FinishRestore();

  // All of its rows go through the adapter, which is of the same model. REQUIRES: it is empty.
  void UseAdapter(std::shared_ptr<const LoraAdapter> adapter);
  const std::shared_ptr<const LoraAdapter>& adapter() const { return adapter_; }

  // Becomes a copy of `other` that shares its blocks; a partly filled one is copied when this one
  // writes to it, if others still have it. REQUIRES: of the same model and adapter.
  void ShareAll(const InvariantKv& other);

  // For the model. Makes room for `tokens` more rows of all layers, and drops blocks that no row
  // sees any more; kResourceExhausted where there is none, without loss of a needed row. Once there
  // is room it may be called again, for as many rows or fewer.
  absl::Status MakeRoom(int tokens);
  // Returns blocks without any row, and sealed ones of chunks that are not whole: those of a
  // MakeRoom for a step that is not made, or of rows that it rewound behind.
  void ReleaseRoom();
  // Where each split of a layer lies, null where it was dropped; until the next MakeRoom.
  std::vector<const std::byte*> SplitsOf(int layer) const {
    return SlicesOf(layer, blocks_, false);
  }
  // Where the blocks of a group lie, likewise.
  std::vector<std::byte*> BlocksOf(LayerGroup group) const;
  // As SplitsOf, of sealed ones.
  std::vector<const std::byte*> SealedOf(int layer) const { return SlicesOf(layer, sealed_, true); }
  // Whether whole chunks are sealed.
  bool seals() const { return layout_->quantization.is_on(); }
  // A layer's slice of a sealed block. REQUIRES: there is one.
  std::byte* SealedAt(int layer, size_t split);
  // A layer's slice of the block that holds `position`. REQUIRES: there is room for it.
  std::byte* SliceAt(int layer, int position);
  // Goes on from `length`: rows behind it are to be computed again, those before it are there.
  // REQUIRES: nobody else holds the blocks of rows behind it.
  void Rewind(int length) { length_ = length; }
  // All layers have the rows now.
  void Advance(int tokens) { length_ += tokens; }
  uint64_t model() const { return layout_ == nullptr ? 0 : model_; }  // 0: none
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
  // Puts a block of `bytes` at `split`, with the bytes of the one that was there.
  void Put(KvBlock block, size_t split, size_t bytes, std::vector<KvBlock>* blocks);

  std::shared_ptr<const KvLayout> layout_;  // null: it was moved from
  KvBlocks* arena_ = nullptr;
  uint64_t model_ = 0;
  std::shared_ptr<const LoraAdapter> adapter_;  // null: none
  SplitBlocks blocks_;                          // null: left by the window, or sealed
  SplitBlocks sealed_;                          // null: left by the window
  SplitBlocks spare_;                           // taken ahead, of each group
  std::array<size_t, 2> ahead_{};  // by group, the blocks that the next step takes in all
  bool keeps_spare_ = false;       // blocks that the window leaves are used again
  int length_ = 0, restoring_ = 0;
  bool shares_end_ = false;  // the block that is partly filled may be others' too
  int first_local_ = 0;      // the first row that local layers hold
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_KV_H_
