// StepTable: what a step's programs know of its rows, in device memory. The host writes all of it
// in one copy; its addresses stay, so that a captured graph serves any step of as many rows.
//
// Thread safety: values.
#ifndef HEARTH_WORKER_DEVICE_STEP_TABLE_H_
#define HEARTH_WORKER_DEVICE_STEP_TABLE_H_

#include <cstddef>
#include <cstdint>

namespace hearth {

// Rows of one sequence that are computed together over keys in splits of one chunk, for one KV
// head: number i is head i % sharers of token i / sharers.
struct AttendItem {
  int32_t row;          // of the step: the first token
  int32_t tokens;       // one after the other
  int32_t position;     // of the first token
  int32_t first_split;  // that any of them sees
  int32_t splits;       // whose blocks follow one another from first_block on
  int32_t first_block;  // in AttendList::blocks
  int32_t is_whole;  // all splits that the tokens see: the result is final. Else one split, whose
                     // state goes to the slot of the item's number
  int32_t padding;
  const std::byte* block;  // of the first split: without the list, as latency counts
};

// Items of one row whose states are combined: [first, first + count). None: the row is whole.
struct RowItems {
  int32_t first, count;
};

// For layers of one group, local or global.
struct AttendList {
  const AttendItem* items;
  const RowItems* row_items;       // [rows]
  const std::byte* const* blocks;  // of the items
  std::byte* const* row_blocks;    // [rows]: the block that a row's keys and values go to
  const int32_t* item_count;
};

struct StepTable {
  const int32_t* row_count;
  const int32_t* tokens;     // [rows]
  const int32_t* positions;  // [rows]
  const int32_t* wanted;     // rows whose logits are wanted; others behind them are 0
  AttendList lists[2];       // local, global
};

// Keys and values of a layer in a block: [K,V][kv_head][split][head_dim] floats from `offset` bytes
// on.
struct KvPlace {
  int64_t offset;
  int split;  // tokens of a block
  int heads, kv_heads, head_dim;
  int sharers;  // heads of a KV head
  int window;   // keys that a row sees, itself among them; 0: all before it
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_STEP_TABLE_H_
