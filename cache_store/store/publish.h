// PublishSession: stores a prompt's objects: says which are lacking, takes their slices, commits.
//
// Thread safety: one thread at a time. It must not outlive its store. Errors: tiered_store.h.
#ifndef HEARTH_CACHE_STORE_STORE_PUBLISH_H_
#define HEARTH_CACHE_STORE_STORE_PUBLISH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache_store/base/prompt_chain.h"
#include "cache_store/base/slice_view.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"

namespace hearth {

struct PublishObject {
  ObjectId id;
  std::vector<uint64_t> slice_digests;
  bool absent = false;  // the caller cannot supply it
};

struct PublishSpec {
  Fingerprint fingerprint;
  std::string tenant;
  std::vector<uint32_t> token_ids;
  std::vector<uint32_t> cuts;
  std::vector<uint32_t> boundaries;
  std::vector<PublishObject> objects;
  Durability durability = Durability::kDefault;
  // The restore points' time to live from their commit on. Zero: the tenant's default; without one,
  // a point that was published before keeps its end. Published again with a time to live, a point
  // gets the later of the two ends.
  absl::Duration ttl;
  std::function<bool()> stopped = nullptr;  // as PrefixQuery's
  std::string publisher = "";               // who it is, for QuarantineResult
  std::vector<ChainPtr> chains = {};        // as PrefixQuery's
  // What it was read under: kCancelled where the tenant's is another (TieredStore::DropNumber).
  std::optional<uint64_t> drop_number = std::nullopt;
};

struct PublishResult {
  Durability durable = Durability::kMemory;  // the level reached
  std::vector<uint32_t> boundaries;          // now stored
  uint64_t bytes_received = 0;
  std::vector<std::string> notes;  // why a boundary was left out
};

class PublishSession {
 public:
  virtual ~PublishSession() = default;  // without Commit: leaves nothing behind
  // Indices into the spec's objects that the store lacks; the caller puts exactly these.
  virtual absl::Span<const uint32_t> needed() const = 0;
  // Uninitialised memory for the next slice to be put: where it will stay, when there is room.
  // Counted as staged before its allocation; kResourceExhausted names the limit.
  virtual absl::StatusOr<std::shared_ptr<std::byte>> AllocateSlice(size_t bytes) = 0;
  // Takes one whole slice, which it copies or keeps alive by its owner, and verifies it against the
  // announced digest. Counts memory as staged that AllocateSlice did not. `digest`: of a slice that
  // is kept alive by its owner, where the caller computed it from this memory while filling it: it
  // is not read again.
  virtual absl::Status PutSlice(uint32_t object, uint32_t layer, SliceView slice,
                                std::optional<uint64_t> digest = std::nullopt) = 0;
  // Writes the manifest last; returns once the requested durability is reached. Boundaries whose
  // objects did not all arrive are left out with a note.
  virtual absl::StatusOr<PublishResult> Commit() = 0;
  // As Commit. `done` is called once, maybe later and from another thread, so that who waits for
  // others than this store holds no thread of its caller's; the session is not used after that.
  virtual void CommitThen(std::function<void(absl::StatusOr<PublishResult>)> done) {
    done(Commit());
  }
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_PUBLISH_H_
