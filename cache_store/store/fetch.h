// FetchSession: reads a restore point: its plan, and its slices one by one. And PrefixQuery, which
// asks for it.
//
// Thread safety: one thread at a time. The session must not outlive its store; it holds references,
// so no object of its plan is evicted. Errors: tiered_store.h.
#ifndef HEARTH_CACHE_STORE_STORE_FETCH_H_
#define HEARTH_CACHE_STORE_STORE_FETCH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache_store/base/device_memory.h"
#include "cache_store/base/prompt_chain.h"
#include "cache_store/base/slice_view.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "proto/segment_format.h"

namespace hearth {

// A prompt as a caller names it. A lookup whose fingerprint the store does not know is a miss;
// Publish needs the fingerprint's fields.
struct PrefixQuery {
  Digest fingerprint{};
  std::string tenant;  // "default" without authentication
  std::vector<uint32_t> token_ids;
  std::vector<uint32_t> cuts;
  // A tenant whose prefixes are read, too, where the caller's own are shorter; empty: none.
  std::string public_tenant;
  // The caller fetched this before and could not use the result; the first fetch was counted.
  bool again = false;
  // Set by a tier in front of the store. A slower tier that what is found was just loaded from: the
  // answer names it, and counts as from there.
  Tier loaded_from = Tier::kNone;
  // So much of the prompt is known elsewhere: LookupPlan::matched_tokens is no less.
  uint32_t known_tokens = 0;
  // Of this prompt, from Peek: they are not made again. They borrow this list of cuts, or the one
  // that this is a copy of.
  std::vector<ChainPtr> chains = {};
  // Asked every millisecond or so while keys are computed: true ends the call with kCancelled.
  // Null: never.
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
  Tier slowest_tier = Tier::kNone;  // of RAM and disk, or PrefixQuery::loaded_from
  bool on_device = false;           // all of it has copies in the gpu tier
  std::string miss_reason;
  bool from_public = false;                     // it is PrefixQuery::public_tenant's
  absl::Time expires = absl::InfiniteFuture();  // the restore point's end
};

class FetchSession {
 public:
  virtual ~FetchSession() = default;  // releases the references
  virtual const LookupPlan& plan() const = 0;
  // Reads and verifies one slice. `object` indexes plan().objects; `layer` is a model layer index.
  virtual absl::StatusOr<SliceView> ReadSlice(size_t object, uint32_t layer) = 0;
  // A slice in RAM, not verified: for a reader that verifies it, and calls ReadSlice if it is
  // wrong.
  virtual std::optional<SliceView> PeekSlice(size_t object, uint32_t layer) = 0;
  // Where the slice lies in the shared memory, not verified, and safe from reuse until this session
  // ends. None when it is not there: read it.
  virtual std::optional<SegmentRange> ShareSlice(size_t object, uint32_t layer) = 0;
  // The object's copy in the gpu tier, for a reader that computes on that device. Null when there
  // is none, or no longer: read the slices.
  virtual DeviceRef OnDevice(size_t object) = 0;
  // Where it lies in the shared device memory, safe from reuse until this session ends.
  virtual std::optional<SegmentRange> ShareOnDevice(size_t object) = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_FETCH_H_
