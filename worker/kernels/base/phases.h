// KernelPhases: a list of loops that depend on each other, such as a layer or a whole step, which
// is made first and then run as one region of threads. Each kernel that splits its work adds its
// loops to a list (AddProduct, AddAttend, ...); a loop sees the results of the one before.
//
// A kernel's arguments (views, weights, workspace) must stay valid until the list has run. Kernels
// that are added to one list may share a workspace: each uses it in its own loops only.
//
// Thread safety: none while it is made; its loops' bodies run on any threads.
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

// How the kernels ask their caller for threads: calls body(0) .. body(parts - 1), each once, on any
// threads and in any order, and returns when all are done. A kernel splits its outputs into parts,
// never a sum; a part's result does not depend on the thread that computes it, nor on the parts
// before it. There are usually more parts than threads: a free thread takes the next. Each part
// sets the thread's floating-point mode itself (float_mode.h). Parts do not throw.
using ParallelFor = absl::FunctionRef<void(int64_t parts, KernelPart body)>;

inline void InThisThread(int64_t parts, KernelPart body) {
  for (int64_t part = 0; part < parts; ++part) body(part);
}

// One loop: body(0) .. body(parts - 1), as ParallelFor has it. The thread's number is not used.
struct KernelPhase {
  int64_t parts;
  std::function<void(int64_t part, int thread)> body;
  int64_t rows = 0;  // of a loop over rows, kPartRows in a part
};

class KernelPhases {
 public:
  template <typename Body>
  void Add(int64_t parts, Body body) {
    phases_.push_back({parts, [body = std::move(body)](int64_t part, int) { body(part); }});
  }
  // body(row) for each row; a part has some rows, as one is over before a thread has taken it.
  template <typename Body>
  void AddRows(int64_t rows, Body body) {
    phases_.push_back({(rows + kPartRows - 1) / kPartRows, OverRows(rows, std::move(body)), rows});
  }
  // The same, for a body that sees no other row's results of the loop before: if that is over as
  // many rows, body(row) is called in it, as a loop costs threads a wait.
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

  // One loop after the other.
  void Run(ParallelFor parallel) const {
    for (const KernelPhase& phase : phases_) {
      parallel(phase.parts, [&phase](int64_t part) { phase.body(part, 0); });
    }
  }
  // As one sequence, by `pool`: what has RunPhases as ThreadPool has it.
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
