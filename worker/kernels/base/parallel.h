// ParallelFor: how the kernels ask their caller for threads.
//
// A kernel splits its outputs into parts, never a sum; a part's result does not depend on the
// thread that computes it, nor on the parts before it. There are usually more parts than threads: a
// free thread takes the next. Each part sets the thread's floating-point mode itself
// (float_mode.h). Parts do not throw.
#ifndef HEARTH_WORKER_KERNELS_BASE_PARALLEL_H_
#define HEARTH_WORKER_KERNELS_BASE_PARALLEL_H_

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace hearth {

using KernelPart = absl::FunctionRef<void(int64_t part)>;

// Calls body(0) .. body(parts - 1), each once, on any threads and in any order, and returns when
// all are done.
using ParallelFor = absl::FunctionRef<void(int64_t parts, KernelPart body)>;

inline void InThisThread(int64_t parts, KernelPart body) {
  for (int64_t part = 0; part < parts; ++part) body(part);
}

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_BASE_PARALLEL_H_
