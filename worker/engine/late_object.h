// LateObject: copies of an object's rows from a device that still run, and the sealing of the
// object after them.
//
// Thread safety: Add: before the object is shared. Complete: any thread. The destructor waits for
// the copies.
#ifndef HEARTH_WORKER_ENGINE_LATE_OBJECT_H_
#define HEARTH_WORKER_ENGINE_LATE_OBJECT_H_

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "proto/kv_layout.h"
#include "worker/engine/runner/kv_snapshot.h"
#include "worker/model/sequence_kv.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

class LateObject : public LateBytes {
 public:
  // `object` owns the LateObject.
  LateObject(const KvLayout& layout, KvObject* object) : layout_(layout), object_(object) {}

  void Add(std::unique_ptr<RowCopies> copies) { copies_.push_back(std::move(copies)); }
  bool Complete() override {
    std::call_once(once_, [this] {
      bool arrived = true;
      for (const auto& copies : copies_) arrived = copies->Wait() && arrived;
      copies_.clear();
      if (arrived) SealObject(layout_, object_);
      is_complete_ = arrived;
    });
    return is_complete_;
  }

 private:
  const KvLayout layout_;
  KvObject* const object_;
  std::vector<std::unique_ptr<RowCopies>> copies_;
  std::once_flag once_;
  bool is_complete_ = false;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_LATE_OBJECT_H_
