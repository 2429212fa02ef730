// StoreReader: looks up prompts, reads the stored parts, and explains misses.
//
// Thread safety: all methods from any thread, but a session is used by one thread at a time.
// Ownership: sessions must not outlive their store; a session holds references, so that no object
// of its plan is evicted before it ends. Errors: kInvalidArgument (caller), kDataLoss (bytes failed
// verification: already quarantined), kNotFound (unknown id). A miss is a plan with usable_tokens
// == 0, never an error.
#ifndef HEARTH_CACHE_STORE_STORE_STORE_READER_H_
#define HEARTH_CACHE_STORE_STORE_STORE_READER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache_store/base/device_memory.h"
#include "cache_store/base/prompt_chain.h"
#include "cache_store/base/removal.h"
#include "cache_store/base/slice_view.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "proto/segment_format.h"

namespace hearth {

// A lookup of a prompt. If the store does not know the fingerprint, the lookup is a miss.
struct PrefixQuery {
  Digest fingerprint{};
  std::string tenant;  // "default" without authentication
  std::vector<uint32_t> token_ids;
  std::vector<uint32_t> cuts;
  // Tenant whose prefixes are also read if the caller's own are shorter; empty: none.
  std::string public_tenant;
  // The caller fetched this before and could not use the result; only the first fetch is counted.
  bool again = false;
  uint64_t token_ns = 0;  // time in which the caller computes a token, for statistics; 0: unknown
  // Set by a tier in front of the store: the slower tier from which the prefix was just loaded. The
  // result names this tier, and the hit counts for it.
  Tier loaded_from = Tier::kNone;
  // Set by a tier in front: lower bound of LookupPlan::matched_tokens, known from elsewhere.
  uint32_t known_tokens = 0;
  // Key chains of this prompt from LocalStore::Peek, reused here. They point into `cuts`, or into
  // the list from which it was copied, which must outlive them.
  std::vector<ChainPtr> chains = {};
  // Called about every millisecond while keys are computed; true ends the call with kCancelled.
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
  std::vector<uint32_t> token_ids;  // the stored tokens, usable_tokens of them
  // Cuts at or below usable_tokens. Fetch: the query's cuts, which the keys prove equivalent (a cut
  // at a multiple of C changes nothing). FetchById: as published.
  std::vector<uint32_t> cuts;
  std::vector<PlannedObject> objects;  // NeededObjects order
  uint64_t total_bytes = 0;
  Tier slowest_tier = Tier::kNone;  // of RAM and disk, or PrefixQuery::loaded_from
  bool on_device = false;           // all objects have copies in the gpu tier
  std::string miss_reason;
  bool from_public = false;                     // it belongs to PrefixQuery::public_tenant
  absl::Time expires = absl::InfiniteFuture();  // the restore point's expiry
};

class FetchSession {
 public:
  virtual ~FetchSession() = default;  // releases the references
  virtual const LookupPlan& plan() const = 0;
  // Reads and verifies one slice. `object` indexes plan().objects; `layer` is a model layer index.
  virtual absl::StatusOr<SliceView> ReadSlice(size_t object, uint32_t layer) = 0;
  // Returns a slice in RAM, unverified, for a reader that verifies it and calls ReadSlice if it is
  // wrong.
  virtual std::optional<SliceView> PeekSlice(size_t object, uint32_t layer) = 0;
  // Returns the slice's place in the shared memory, unverified, and protected from reuse until this
  // session ends. Nullopt if the slice is not there: read it.
  virtual std::optional<SegmentRange> ShareSlice(size_t object, uint32_t layer) = 0;
  // Returns the object's copy in the gpu tier, for a reader that computes on that device. Null if
  // there is none (any longer): read the slices.
  virtual DeviceRef OnDevice(size_t object) = 0;
  // Returns the place of that copy in the shared device memory, protected from reuse until this
  // session ends.
  virtual std::optional<SegmentRange> ShareOnDevice(size_t object) = 0;
};

// Reason why a boundary cannot be used.
enum class MissReason {
  kNone,         // usable
  kNeverStored,  // or forgotten
  kRemoved,      // BoundaryReport::removed says why
  kTailGone,  // local objects of the last tokens are missing; `removed` is set if they were stored
              // once
  kGlobalsGone,  // global objects before it are missing; `removed` likewise
  kOtherCuts,    // the tokens are stored with other cuts
  kCount
};
// Names are part of the API: BoundaryInfo.reason_code.
const char* MissName(MissReason miss);

struct BoundaryReport {
  uint32_t boundary = 0;
  bool usable = false;
  Tier slowest_tier = Tier::kNone;
  uint64_t bytes = 0;
  absl::Duration age;
  bool pinned = false;
  MissReason miss = MissReason::kNone;
  std::optional<Removal> removed;
  absl::Duration removed_ago;  // set with `removed`
  std::string reason;          // the whole explanation as text
  std::optional<Digest> restore_point_id;
  // Usable because it belongs to PrefixQuery::public_tenant. Then age, pin and id are not set, as
  // they would reveal its use by other tenants.
  bool from_public = false;
};
struct OtherFingerprint {
  FieldDifference difference;
  uint32_t matched_tokens = 0;
};
// Explains which part of a prompt can be served and why, for each boundary.
struct ExplainReport {
  uint32_t matched_tokens = 0;
  uint32_t usable_tokens = 0;
  std::vector<BoundaryReport> boundaries;
  // Number of boundaries omitted from `boundaries` because they were never stored.
  uint32_t omitted_boundaries = 0;
  std::vector<OtherFingerprint> other_fingerprints;
  std::string summary;

  // Adds boundaries that are usable elsewhere but not here.
  void AddUsable(absl::Span<const BoundaryReport> elsewhere);
};

class StoreReader {
 public:
  virtual ~StoreReader() = default;

  // `max_tokens`: highest boundary (0: tokens - 1). `above_tokens`: only higher boundaries are
  // useful.
  virtual absl::StatusOr<std::unique_ptr<FetchSession>> Fetch(const PrefixQuery& query,
                                                              uint32_t above_tokens,
                                                              uint32_t max_tokens) = 0;
  // For copying elsewhere. Not a use: neither counts as a hit nor affects eviction and tiers.
  virtual absl::StatusOr<std::unique_ptr<FetchSession>> FetchById(const Digest& id,
                                                                  const std::string& tenant) = 0;
  virtual absl::StatusOr<ExplainReport> Explain(const PrefixQuery& query) = 0;
  // Remembers a fingerprint's readable fields, so that Explain can name differing fields.
  virtual void Observe(const Fingerprint& fingerprint, const std::string& tenant) = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_STORE_READER_H_
