// LateCopies: emulates the asynchronous copies of block programs on the CPU. By default a copy is
// performed at once. After SetLate(true) it is performed only when the program waits for it, so a
// missing wait gives wrong bits.
//
// Thread safety: each thread has its own queue of copies; call SetLate before any program runs.
#ifndef HEARTH_WORKER_DEVICE_LATE_COPIES_H_
#define HEARTH_WORKER_DEVICE_LATE_COPIES_H_

#include <cassert>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

namespace hearth {

class LateCopies {
 public:
  static void SetLate(bool late) { is_late_ = late; }
  static bool IsLate() { return is_late_; }

  static void Add(void* to, const void* from) {
    if (!is_late_) {
      std::memcpy(to, from, 16);
      return;
    }
    open_.push_back({to, from});
  }
  static void Commit() {
    if (is_late_) groups_.push_back(std::exchange(open_, {}));
  }
  static void Wait(size_t left) {
    for (; groups_.size() > left; groups_.pop_front()) {
      for (const auto& [to, from] : groups_.front()) std::memcpy(to, from, 16);
    }
  }
  // Call when a thread block has ended. REQUIRES: the block has waited for all its copies.
  static void End() {
    for (const Group& group : groups_) assert(group.empty());
    assert(open_.empty());
    groups_.clear();
  }

 private:
  using Group = std::vector<std::pair<void*, const void*>>;
  inline static bool is_late_ = false;
  inline static thread_local Group open_;
  inline static thread_local std::deque<Group> groups_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_LATE_COPIES_H_
