// StepTable: the data about a step's rows that the device programs read from device memory. The
// host writes the table before the step. Its addresses never change, so a captured graph serves
// every step with the same number of rows.
//
// Thread safety: values.
#ifndef HEARTH_WORKER_DEVICE_STEP_TABLE_H_
#define HEARTH_WORKER_DEVICE_STEP_TABLE_H_

#include <cstddef>
#include <cstdint>

namespace hearth {

// Rows of a tile in the programs of LoRA adapters (adapter_program.h).
inline constexpr int kAdapterTileRows = 8;

// An attention work item: rows of one sequence that are computed together over consecutive splits,
// for one KV head. Row i is query head i % sharers of token i / sharers.
struct AttendItem {
  int32_t row;          // row of the item's first token in the step
  int32_t tokens;       // number of consecutive tokens
  int32_t position;     // position of the item's first token in the sequence
  int32_t first_split;  // first split that any token of the item attends to
  int32_t splits;       // number of splits; their blocks follow first_block
  int32_t first_block;  // index of the first split's KV block in AttendList::blocks
  // 1: the item covers all splits that its tokens attend to, so the result is final. 0: the item
  // covers one split; its softmax state is written to the slot with the item's number.
  int32_t is_whole;
  int32_t padding;
  const std::byte* block;  // block of the first split; saves the latency of a read from `blocks`
};

// The items of one row whose softmax states are combined: [first, first + count). If count is 0,
// one item computed the row, and there is nothing to combine.
struct RowItems {
  int32_t first, count;
};

// The attention items of a step for all layers of one kind, local or global.
struct AttendList {
  const AttendItem* items;
  const RowItems* row_items;       // [rows]: the items to combine for each row
  const std::byte* const* blocks;  // KV blocks of the items
  std::byte* const* row_blocks;  // [rows]: the KV block to which a row's key and value are written
  const int32_t* item_count;
};

struct StepTable {
  const int32_t* row_count;
  const int32_t* tokens;     // [rows]: token ids
  const int32_t* positions;  // [rows]: positions in their sequences
  const int32_t* wanted;     // [wanted] rows whose logits are computed, padded with 0
  // [rows]: numbers of LoRA adapters, -1: none; undefined if no row of the step has an adapter
  const int32_t* adapters;
  AttendList lists[2];  // [0]: local, [1]: global
};

// Where a layer's keys and values lie in a KV block: [K,V][kv_head][split][head_dim], beginning at
// byte `offset`.
struct KvPlace {
  int64_t offset;
  int split;  // tokens of a KV block
  int heads, kv_heads, head_dim;
  int sharers;   // number of query heads that share one KV head
  int window;    // number of keys that a row attends to, including its own; 0: all earlier keys
  bool is_bf16;  // element type of keys and values: bfloat16, else float32
  bool values_are_finite;  // exact::FiniteBf16 of each bfloat16 value is written
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_STEP_TABLE_H_
