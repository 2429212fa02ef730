// FetchSession: a restore point that is read: its plan, and its slices one by one. And the query
// that asks for it.
//
// Thread safety: one thread at a time. The session holds references, so nothing it promised is
// evicted, and must not outlive its store. Errors: tiered_store.h.
#ifndef HEARTH_CACHE_STORE_STORE_FETCH_H_
#define HEARTH_CACHE_STORE_STORE_FETCH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cache_store/base/device_memory.h"
#include "cache_store/base/slice_view.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "proto/segment_format.h"
#include "proto/snapshot_format.h"

namespace hearth {

// A prompt as a caller names it. The fingerprint's fields may be unknown to the store on a lookup
// (then it is a miss); Publish needs them.
struct PrefixQuery {
  Digest fingerprint{};
  std::string tenant;  // "default" without authentication
  std::vector<uint32_t> token_ids;
  std::vector<uint32_t> cuts;
  // Whose prefixes are read, too, where the tenant's own are shorter; empty: nobody's.
  std::string public_tenant;
  // The caller fetched this before and could not use what it got: that was counted.
  bool again = false;
  // Asked every millisecond or so while keys are computed: true ends the call with kCancelled.
  // Null: it goes to its end.
  std::function<bool()> stopped = nullptr;
};

struct PlannedObject {
  ObjectId id;
  std::vector<uint64_t> slice_digests;  // ascending by layer
  Tier tier = Tier::kNone;
};

struct LookupPlan {
  uint32_t matched_tokens = 0;
  uint32_t usable_tokens = 0;
  Fingerprint fingerprint;          // set when usable
  KvLayout layout;                  // set when usable
  std::vector<uint32_t> token_ids;  // the stored ones, usable_tokens of them
  // At or below usable_tokens. Fetch: the query's own, which the keys prove equivalent (a cut at a
  // multiple of C changes nothing). FetchById: as published.
  std::vector<uint32_t> cuts;
  std::vector<PlannedObject> objects;  // NeededObjects order
  uint64_t total_bytes = 0;
  Tier slowest_tier = Tier::kNone;  // of RAM and disk
  bool on_device = false;           // all of it has copies in the gpu tier
  std::string miss_reason;
  bool from_public = false;  // it is PrefixQuery::public_tenant's
};

class FetchSession {
 public:
  virtual ~FetchSession() = default;  // releases the references
  virtual const LookupPlan& plan() const = 0;
  // Reads and verifies one slice. `object` indexes plan().objects; `layer` is a model layer index.
  virtual absl::StatusOr<SliceView> ReadSlice(size_t object, uint32_t layer) = 0;
  // A slice that lies in RAM, not verified: for a reader that does, and reads again when it has to.
  virtual std::optional<SliceView> PeekSlice(size_t object, uint32_t layer) = 0;
  // Where the slice lies in the shared memory, not verified, and safe from reuse until this session
  // ends. None when it lies elsewhere: read it.
  virtual std::optional<SegmentRange> ShareSlice(size_t object, uint32_t layer) = 0;
  // The object's copy in the gpu tier, for a reader that computes on that device. Null: there is
  // none, or no longer: read the slices.
  virtual DeviceRef OnDevice(size_t object) = 0;
  // Where it lies in the shared device memory, safe from reuse until this session ends.
  virtual std::optional<SegmentRange> ShareOnDevice(size_t object) = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_FETCH_H_
