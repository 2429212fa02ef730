// ObjectBuilder: the objects of a fetch, filled slice by slice and verified as each is complete.
//
// Takes nothing on trust: the objects are exactly those the boundary needs, every byte has one
// place, and every slice has the digest that the plan announced. Thread safety: none. Ownership:
// owns the buffers until Take.
#ifndef HEARTH_SERVICES_OBJECT_BUILDER_H_
#define HEARTH_SERVICES_OBJECT_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/kv_layout.h"
#include "worker/prefix_cache.h"

namespace hearth {

class ObjectBuilder {
 public:
  // What a plan announces. kFailedPrecondition when it is not what `boundary` needs under `layout`.
  struct Announced {
    ObjectId id;
    std::vector<uint64_t> slice_digests;
  };
  static absl::StatusOr<ObjectBuilder> Create(const KvLayout& layout, uint32_t boundary,
                                              std::vector<Announced> announced);

  // Pieces of one slice come in ascending order. kFailedPrecondition for one without a place,
  // kDataLoss for a slice with another digest.
  absl::Status Add(uint32_t object, uint32_t layer, uint64_t offset, absl::string_view data);
  // kDataLoss unless every slice is there.
  absl::StatusOr<std::vector<std::shared_ptr<const KvObject>>> Take();

  uint64_t bytes_added() const { return bytes_added_; }

 private:
  struct Slot {
    std::shared_ptr<KvObject> object;
    std::vector<uint64_t> filled_bytes;  // by slice
  };
  explicit ObjectBuilder(const KvLayout& layout);

  KvLayout layout_;
  std::vector<uint32_t> layers_[2];  // by group
  std::vector<Slot> slots_;
  uint64_t bytes_added_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_OBJECT_BUILDER_H_
