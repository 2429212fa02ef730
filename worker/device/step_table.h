// StepTable: the data of a step's rows that its programs read, in device memory. The host writes
// the table before the step. Its addresses never change, so a captured graph serves any step of the
// same number of rows.
//
// Thread safety: values.
#ifndef HEARTH_WORKER_DEVICE_STEP_TABLE_H_
#define HEARTH_WORKER_DEVICE_STEP_TABLE_H_

#include <cstddef>
#include <cstdint>

namespace hearth {

// Rows of one sequence that are computed together over splits of one chunk, for one KV head. Row i
// is head i % sharers of token i / sharers.
struct AttendItem {
  int32_t row;          // row of the first token in the step
  int32_t tokens;       // consecutive tokens
  int32_t position;     // position of the first token
  int32_t first_split;  // first split that any token sees
  int32_t splits;       // splits; their blocks follow first_block
  int32_t first_block;  // index in AttendList::blocks
  int32_t is_whole;  // 1: all splits that the tokens see, so the result is final. 0: one split; its
                     // state goes to the slot of the item's number
  int32_t padding;
  const std::byte* block;  // block of the first split, without reading the list: latency counts
};

// The items of one row whose states are combined: [first, first + count). count 0: one item
// computed the row.
struct RowItems {
  int32_t first, count;
};

// The items of a step for the layers of one group, local or global.
struct AttendList {
  const AttendItem* items;
  const RowItems* row_items;       // [rows]: the combined items of each row
  const std::byte* const* blocks;  // blocks of the items
  std::byte* const* row_blocks;    // [rows]: the block for a row's keys and values
  const int32_t* item_count;
};

struct StepTable {
  const int32_t* row_count;
  const int32_t* tokens;     // [rows]: token ids
  const int32_t* positions;  // [rows]: positions in their sequences
  const int32_t* wanted;     // [wanted] rows whose logits are wanted, padded with 0
  AttendList lists[2];       // [0]: local, [1]: global
};

// The place of a layer's keys and values in a block: floats [K,V][kv_head][split][head_dim], from
// `offset` bytes on.
struct KvPlace {
  int64_t offset;
  int split;  // tokens of a block
  int heads, kv_heads, head_dim;
  int sharers;  // query heads that share one KV head
  int window;   // keys that a row sees, including its own; 0: all before it
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_STEP_TABLE_H_
