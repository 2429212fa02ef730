// The maximum number of rows of a Scheduler's batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "worker/engine/scheduler.h"

namespace hearth {
namespace {

// Returns the rows of a batch in which `decoding` sequences decode, and the other sequences
// prefill.
size_t RowsOfABatch(uint32_t places, SequenceId decoding, uint32_t rows, uint32_t alone) {
  Scheduler scheduler(places, 0);
  for (SequenceId id = 1; id <= places; ++id) scheduler.Enqueue(id);
  for (SequenceId id = 1; id <= places; ++id) {
    scheduler.Admit(id);
    if (id <= decoding) {
      scheduler.StartDecode(id);
    } else {
      scheduler.StartPrefill(id, 999);
    }
  }
  size_t batch = 0;
  for (const PlannedStep& part : scheduler.NextBatch(rows, alone)) {
    batch += part.kind == StepKind::kDecode ? 1 : part.tokens;
  }
  return batch;
}

TEST(SchedulerRowsTest, MaximumRowsEqualsLargestBatch) {
  for (uint32_t places = 1; places <= 6; ++places) {
    for (uint32_t rows = 1; rows <= 20; ++rows) {
      for (const uint32_t alone : {rows, rows + 1, rows + 30}) {
        size_t most = 0;
        for (SequenceId decoding = 0; decoding <= places; ++decoding) {
          most = std::max(most, RowsOfABatch(places, decoding, rows, alone));
        }
        EXPECT_EQ(most, Scheduler::MostRows(rows, alone, places))
            << places << " places, " << rows << " rows, " << alone << " alone";
      }
    }
  }
}

}  // namespace
}  // namespace hearth
