// StepPlan: builds the StepTable of a step on the host and copies it to the device.
//
// Thread safety: none. The buffers are reused by the next step.
#ifndef HEARTH_WORKER_DEVICE_STEP_PLAN_H_
#define HEARTH_WORKER_DEVICE_STEP_PLAN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/device/device.h"
#include "worker/device/device_model.h"
#include "worker/device/step_table.h"

namespace hearth {

// The tokens that a step appends to one sequence.
struct DevicePart {
  absl::Span<const int32_t> tokens;
  int begin = 0;  // position of the first token
  int want = 0;   // the logits of the last `want` tokens are computed
  // blocks[0]: local layers; blocks[1]: global layers. The KV block of each split in device memory,
  // up to the split of the last token; null if no row attends to the split.
  std::array<absl::Span<std::byte* const>, 2> blocks;
  int adapter = -1;  // number of the LoRA adapter (DeviceAdapters); -1: none
  // If set, attention reads `blocks`, which are copies in float32 of blocks in bfloat16; the rows'
  // keys and values are written to `written`, the blocks in bfloat16. Set in all parts of a step or
  // in none. REQUIRES: if set, all rows belong to one split.
  std::array<std::byte*, 2> written = {};
  bool reads_copies() const { return written[0] != nullptr || written[1] != nullptr; }
};

// Maximum sizes of a StepTable. They also determine the memory for softmax states of splits.
struct StepCapacity {
  int rows = 0, wanted = 0;
  int items = 0;   // attention items of one kind of layer, local or global
  int blocks = 0;  // KV blocks of one kind of layer, all sequences together
};

class StepPlan {
 public:
  StepPlan(Device* device, const DeviceShape& shape, const StepCapacity& capacity);

  // Writes the StepTable of a step. If `splits`, an attention item covers one token and one split
  // (or all splits, once few item entries are free); otherwise an item covers all splits of its
  // rows, at most `tile_rows` (query heads times tokens) or one token. REQUIRES: the parts' rows,
  // wanted rows and blocks are within the capacity.
  void Write(absl::Span<const DevicePart> parts, bool splits, int tile_rows);

  const StepTable& table() const { return table_; }
  const StepCapacity& capacity() const { return capacity_; }
  int tile_rows() const { return tile_rows_; }
  int rows() const { return static_cast<int>(tokens_.size()); }
  int wanted() const { return wanted_count_; }
  // Returns the maximum number of runs of rows with the same adapter in a tile of kAdapterTileRows
  // rows; 0 if no row has an adapter.
  int adapter_runs() const { return adapter_runs_; }

 private:
  struct List {
    std::vector<AttendItem> items;
    std::vector<RowItems> row_items;
    std::vector<std::byte*> blocks, row_blocks;
    AttendItem* device_items = nullptr;
    RowItems* device_row_items = nullptr;
    std::byte **device_blocks = nullptr, **device_row_blocks = nullptr;
  };
  void AddRows(const DevicePart& part, bool is_global, bool splits, List* list);
  void AddTile(const AttendItem& tile, bool splits, List* list);
  void WriteAdapters(absl::Span<const DevicePart> parts);

  Device* const device_;
  DeviceArena arena_;
  const DeviceShape& shape_;
  const StepCapacity capacity_;
  StepTable table_;
  int32_t *device_counts_, *device_tokens_, *device_positions_, *device_wanted_, *device_adapters_;
  std::vector<int32_t> tokens_, positions_, wanted_, adapters_;
  int wanted_count_ = 0, tile_rows_ = 0, adapter_runs_ = 0;
  List lists_[2];
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_STEP_PLAN_H_
