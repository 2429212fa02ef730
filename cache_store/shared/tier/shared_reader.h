// SharedReader: reads a prompt's objects from the engine, and believes none before it is opened.
//
// What is missing or wrong is found out here, and counted: the head of an object that is not whole
// is erased, so that the next publisher writes it anew.
//
// Thread safety: all methods from any thread. Ownership: borrows the core.
#ifndef HEARTH_CACHE_STORE_SHARED_TIER_SHARED_READER_H_
#define HEARTH_CACHE_STORE_SHARED_TIER_SHARED_READER_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache_store/base/slice_view.h"
#include "cache_store/shared/shared_engine.h"
#include "cache_store/shared/shared_object.h"
#include "cache_store/shared/tier/object_map.h"
#include "cache_store/shared/tier/shared_core.h"

namespace hearth {

// An object from the engine.
struct LoadedObject {
  SharedShape shape;
  SharedFacts facts;
  std::vector<std::shared_ptr<std::byte>> slices;  // in the ascending order of layers
  std::vector<uint64_t> digests;                   // of these bytes; those of its head, once whole
};
using LoadedObjects = std::map<ObjectId, LoadedObject>;

class SharedReader {
 public:
  explicit SharedReader(SharedCore* core) : core_(core) {}

  // One round trip: which of the map's objects to probe the engine has.
  void Probe(const SharedPrompt& prompt, absl::Time deadline, ObjectMap* map);
  // Adds to `loaded` those of `ids` that came whole and in time. `stopped` as PrefixQuery's.
  void Load(const SharedPrompt& prompt, absl::Span<const ObjectId> ids, absl::Time deadline,
            const std::function<bool()>& stopped, LoadedObjects* loaded);

 private:
  struct Reading;
  struct PartOf {
    Reading* object = nullptr;
    uint32_t part = 0;
  };
  using Values = SharedEngine::Values;
  // Parts [begin, end) of a list, on their way.
  struct Batch {
    SharedEngine::Later values;
    size_t begin = 0, end = 0;
  };
  // Erases heads of objects that are not what they have to be.
  void Reject(const SharedPrompt& prompt, absl::Span<const ObjectId> ids, absl::Time deadline);
  Batch Ask(const SharedPrompt& prompt, absl::Span<const PartOf> parts, size_t begin,
            absl::Time deadline);
  void Take(const SharedPrompt& prompt, const PartOf& part, absl::StatusOr<std::string> value);
  absl::Status TakeValue(const SharedPrompt& prompt, const PartOf& part, absl::string_view value);

  SharedCore* const core_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_READER_H_
