// ArgmaxProgram: finds the greatest key of each row (worker/kernels/greedy_key.h): the token that
// greedy sampling chooses. Two launches: the first divides a row among thread blocks; the second
// combines their keys. The greatest of some integers does not depend on how they are divided.
#ifndef HEARTH_WORKER_DEVICE_ARGMAX_PROGRAM_H_
#define HEARTH_WORKER_DEVICE_ARGMAX_PROGRAM_H_

#include <cstdint>

#include "worker/device/block_program.h"
#include "worker/kernels/greedy_key.h"

namespace hearth {

// `slices` thread blocks for each row.
struct ArgmaxProgram {
  static constexpr int kWarps = 8, kThreads = kWarps * 32;
  struct Shared {
    GreedyKey keys[kWarps];
  };

  const float* logits;    // [rows][columns]; null: `keys` is used
  const GreedyKey* keys;  // [rows][columns]
  int columns, slices;
  GreedyKey* greatest;  // [rows][slices]

  HEARTH_HOST_DEVICE void Run(Shared* shared, BlockNumber block) const {
    WaitForEarlier();
    AllowNextLaunch();
    const int row = block.number / slices, slice = block.number % slices;
    const int length = (columns + slices - 1) / slices, begin = slice * length;
    const int end = begin + length < columns ? begin + length : columns;
    const int64_t first = static_cast<int64_t>(row) * columns;
    PerThread<GreedyKey, 1, kWarps> best, other;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        GreedyKey& own = best.At(warp, lane)[0];
        own = 0;
        HEARTH_UNROLL_BY(8)
        for (int i = begin + warp * 32 + lane; i < end; i += kThreads) {
          Raise(logits != nullptr ? MakeGreedyKey(logits[first + i], i) : keys[first + i], &own);
        }
      }
      HEARTH_UNROLL
      for (int mask = 16; mask >= 1; mask /= 2) {
        ShuffleXor(&best, 0, mask, warp, &other, 0);
        FOR_LANES(lane) { Raise(other.At(warp, lane)[0], best.At(warp, lane)); }
      }
      FOR_LANES(lane) {
        if (lane == 0) shared->keys[warp] = best.At(warp, lane)[0];
      }
    }
    BARRIER();
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        if (warp == 0 && lane == 0) {
          GreedyKey all = 0;
          for (int i = 0; i < kWarps; ++i) Raise(shared->keys[i], &all);
          greatest[block.number] = all;
        }
      }
    }
  }

 private:
  HEARTH_HOST_DEVICE static void Raise(GreedyKey key, GreedyKey* to) {
    if (key > *to) *to = key;
  }
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_ARGMAX_PROGRAM_H_
