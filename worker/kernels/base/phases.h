// KernelPhases: a list of loops that run one after the other, such as a layer or a whole step; each
// loop reads the results of the loop before it. Each parallel kernel adds its loops to a list
// (AddProduct, AddAttend, ...). The complete list runs as one parallel region.
//
// The arguments of a kernel (views, weights, workspace) must stay valid until the list has run.
// Kernels of one list may use the same workspace, because a kernel needs it only during its own
// loops.
//
// Thread safety: none while the list is built. When the list runs, the bodies of the loops run on
// any thread.
#ifndef HEARTH_WORKER_KERNELS_BASE_PHASES_H_
#define HEARTH_WORKER_KERNELS_BASE_PHASES_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"

namespace hearth {

using KernelPart = absl::FunctionRef<void(int64_t part)>;

// Runs a loop on several threads: calls body(0) .. body(parts - 1), each once, on any thread and in
// any order, and returns when all calls have returned. Kernels divide their outputs among the
// parts, and never divide a sum; the result of a part depends neither on its thread nor on earlier
// parts. There are usually more parts than threads; a free thread takes the next part. Each part
// sets the thread's floating-point mode (float_mode.h). Parts must not throw.
using ParallelFor = absl::FunctionRef<void(int64_t parts, KernelPart body)>;

inline void InThisThread(int64_t parts, KernelPart body) {
  for (int64_t part = 0; part < parts; ++part) body(part);
}

// One loop of the list. `body` ignores `thread`.
struct KernelPhase {
  int64_t parts;
  std::function<void(int64_t part, int thread)> body;
  int64_t rows = 0;  // for a loop over rows with kPartRows rows in a part: number of rows; else 0
};

class KernelPhases {
 public:
  template <typename Body>
  void Add(int64_t parts, Body body) {
    phases_.push_back({parts, [body = std::move(body)](int64_t part, int) { body(part); }});
  }
  // Adds a loop that calls body(row) for each row. Each part has kPartRows rows, because a part of
  // one row would end before another thread could take the next part.
  template <typename Body>
  void AddRows(int64_t rows, Body body) {
    phases_.push_back({(rows + kPartRows - 1) / kPartRows, OverRows(rows, std::move(body)), rows});
  }
  // Adds a loop over rows whose body(row) reads only the same row's results of the previous loop.
  // If the previous loop has the same number of rows, body(row) is appended to that loop, which
  // saves a barrier between the threads.
  template <typename Body>
  void AddToRows(int64_t rows, Body body) {
    if (phases_.empty() || phases_.back().rows != rows) return AddRows(rows, std::move(body));
    auto& last = phases_.back().body;
    last = [before = std::move(last), then = OverRows(rows, std::move(body))](int64_t part,
                                                                              int thread) {
      before(part, thread);
      then(part, thread);
    };
  }
  const std::vector<KernelPhase>& list() const { return phases_; }
  void Clear() { phases_.clear(); }

  // Runs the loops one after the other; the parts of each loop run on the threads of `parallel`.
  void Run(ParallelFor parallel) const {
    for (const KernelPhase& phase : phases_) {
      parallel(phase.parts, [&phase](int64_t part) { phase.body(part, 0); });
    }
  }
  // Runs the whole list as one parallel region on `pool`, a type with ThreadPool's RunPhases.
  template <typename Pool>
  void RunOn(Pool* pool) const {
    std::vector<typename Pool::Phase> shown;
    shown.reserve(phases_.size());
    for (const KernelPhase& phase : phases_) shown.push_back({phase.parts, phase.body});
    pool->RunPhases(shown);
  }

 private:
  static constexpr int64_t kPartRows = 8;

  template <typename Body>
  static std::function<void(int64_t, int)> OverRows(int64_t rows, Body body) {
    return [rows, body = std::move(body)](int64_t part, int) {
      const int64_t end = std::min(rows, (part + 1) * kPartRows);
      for (int64_t row = part * kPartRows; row < end; ++row) body(row);
    };
  }

  std::vector<KernelPhase> phases_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_BASE_PHASES_H_
