// Erasures: the numbers to be erased from the disk, noted under the store's mutex and kept until
// the disk has erased them.
//
// A disk that is full or fails takes no erase; the next erase that succeeds takes all that wait. A
// start before that would bring them back. All manifests are erased before any object, so that no
// manifest outlives an object that it names. A number noted here is never written again.
// Guarded by the store's mutex.
#ifndef HEARTH_CACHE_STORE_CATALOG_ERASURES_H_
#define HEARTH_CACHE_STORE_CATALOG_ERASURES_H_

#include <cassert>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/types/span.h"

namespace hearth {

class Erasures {
 public:
  // In one call: for manifests, a few hundred KiB of the log.
  static constexpr size_t kMaxAtOnce = 4096;
  // Of each kind, 10 MB: beyond, the lowest are left to the next start.
  static constexpr size_t kMaxEntries = size_t{1} << 20;

  struct Objects {
    std::vector<uint64_t> numbers;
    uint64_t bytes = 0;  // what they take on disk
  };

  void AddManifests(absl::Span<const uint64_t> numbers) { Add(numbers, &manifests_); }
  void AddObjects(absl::Span<const uint64_t> numbers, uint64_t bytes) {
    Add(numbers, &objects_);
    object_bytes_ += bytes;
  }
  // Some of them. They stay until they are known to be erased.
  std::vector<uint64_t> SomeManifests() const {
    std::vector<uint64_t> some;
    for (auto it = manifests_.begin(); it != manifests_.end() && some.size() < kMaxAtOnce; ++it) {
      some.push_back(*it);
    }
    return some;
  }
  void ManifestsErased(absl::Span<const uint64_t> numbers) {
    for (const uint64_t number : numbers) manifests_.erase(number);
  }
  // All of them, to be added again if they cannot be erased. REQUIRES: no manifest is left.
  Objects TakeObjects() {
    assert(manifests_.empty());
    Objects taken{{objects_.begin(), objects_.end()}, std::exchange(object_bytes_, 0)};
    objects_.clear();
    return taken;
  }

 private:
  using Numbers = absl::btree_set<uint64_t>;

  static void Add(absl::Span<const uint64_t> numbers, Numbers* to) {
    to->insert(numbers.begin(), numbers.end());
    while (to->size() > kMaxEntries) to->erase(to->begin());
  }

  Numbers manifests_, objects_;
  uint64_t object_bytes_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_ERASURES_H_
