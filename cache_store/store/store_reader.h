// StoreReader: looks up prompts, reads stored prefixes, and explains misses.
//
// Thread safety: all methods from any thread, but a session is for one thread at a time. Ownership:
// sessions must not outlive their store. A session has references on all objects of its plan, so
// that none is evicted before the session ends. Errors: kInvalidArgument (wrong call), kDataLoss
// (bytes failed verification and are quarantined), kNotFound (unknown id). A miss is no error, but
// a plan with usable_tokens == 0.
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

// A lookup of a prompt. If the store does not know the model's fingerprint, the lookup is a miss.
struct PrefixQuery {
  Digest fingerprint{};
  std::string tenant;  // the caller's tenant; "default" if the server does not authenticate
  std::vector<uint32_t> token_ids;
  std::vector<uint32_t> cuts;
  // A second tenant, whose prefixes are used if they are longer than the caller's own; empty: none.
  std::string public_tenant;
  // True: the caller fetched this prompt before and could not use the result. Only the first fetch
  // is counted.
  bool again = false;
  uint64_t token_ns = 0;  // time in which the caller computes one token, for statistics; 0: unknown
  // Set by a tier in front of the store: the slower tier from which it has just loaded the prefix.
  // The result names this tier, and the hit counts for it.
  Tier loaded_from = Tier::kNone;
  // Set by a tier in front of the store: number of leading tokens known to be stored, a lower bound
  // of LookupPlan::matched_tokens.
  uint32_t known_tokens = 0;
  // The prompt's keys, as computed by LocalStore::Peek, so that they are not computed again. They
  // point into `cuts`, or into the list from which `cuts` was copied, which must outlive them.
  std::vector<ChainPtr> chains = {};
  // Called about once a millisecond while keys are computed; if it returns true, the call ends with
  // kCancelled. Null: never cancelled.
  std::function<bool()> stopped = nullptr;
};

struct PlannedObject {
  ObjectId id;
  std::vector<uint64_t> slice_digests;  // digest of each slice, in ascending order of layers
  Tier tier = Tier::kNone;
};

struct LookupPlan {
  uint32_t matched_tokens = 0;
  uint32_t usable_tokens = 0;
  Fingerprint fingerprint;          // set if usable_tokens > 0
  KvLayout layout;                  // set if usable_tokens > 0
  std::vector<uint32_t> token_ids;  // the first usable_tokens tokens, as stored
  // Prefill cuts at or below usable_tokens. From Fetch: the query's cuts, to which the stored cuts
  // are equivalent (a cut at a multiple of chunk_tokens changes nothing). From FetchById: as
  // published.
  std::vector<uint32_t> cuts;
  std::vector<PlannedObject> objects;  // objects to read, in NeededObjects() order
  uint64_t total_bytes = 0;
  // slowest tier that a read needs: RAM, disk, or PrefixQuery::loaded_from
  Tier slowest_tier = Tier::kNone;
  bool on_device = false;  // whether the gpu tier has copies of all objects
  std::string miss_reason;
  bool from_public = false;  // whether the restore point belongs to PrefixQuery::public_tenant
  absl::Time expires = absl::InfiniteFuture();  // expiry of the restore point
};

class FetchSession {
 public:
  virtual ~FetchSession() = default;  // ends the session and releases its references
  virtual const LookupPlan& plan() const = 0;
  // Reads and verifies one slice. `object`: index in plan().objects. `layer`: index of the model
  // layer.
  virtual absl::StatusOr<SliceView> ReadSlice(size_t object, uint32_t layer) = 0;
  // Returns a slice from RAM without verifying it, for a reader that verifies it itself, and calls
  // ReadSlice() if it is wrong. Nullopt: not in RAM.
  virtual std::optional<SliceView> PeekSlice(size_t object, uint32_t layer) = 0;
  // Returns the slice's position in the shared memory, unverified, and protects it from reuse until
  // this session ends. Nullopt if the slice is not in shared memory; then read it.
  virtual std::optional<SegmentRange> ShareSlice(size_t object, uint32_t layer) = 0;
  // Returns the object's copy in the gpu tier, for a reader that computes on this device. Null if
  // there is no copy; then read the slices.
  virtual DeviceRef OnDevice(size_t object) = 0;
  // Returns the position of the object's copy in the shared device memory, and protects it from
  // reuse until this session ends.
  virtual std::optional<SegmentRange> ShareOnDevice(size_t object) = 0;
};

// Reason why a boundary of a prompt cannot be used.
enum class MissReason {
  kNone,         // the boundary is usable
  kNeverStored,  // never stored, or removed so long ago that it is forgotten
  kRemoved,      // stored and removed; BoundaryReport::removed has the reason
  // objects of the local layers for the last tokens are missing; if they were stored, `removed` has
  // the reason
  kTailGone,
  // objects of the global layers are missing; if they were stored, `removed` has the reason
  kGlobalsGone,
  kOtherCuts,  // the same tokens are stored, but were computed with other prefill cuts
  kCount
};
// Returns the name of the reason. Names are part of the API: BoundaryInfo.reason_code.
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
  absl::Duration removed_ago;  // time since the removal; set if `removed` is set
  std::string reason;          // the complete explanation as text
  std::optional<Digest> restore_point_id;
  // True: usable because it belongs to PrefixQuery::public_tenant. Then age, pin and id are not
  // set, because they would reveal how other tenants use it.
  bool from_public = false;
};
struct OtherFingerprint {
  FieldDifference difference;
  uint32_t matched_tokens = 0;
};
// Explains for each boundary of a prompt whether it can be served, and why not.
struct ExplainReport {
  uint32_t matched_tokens = 0;
  uint32_t usable_tokens = 0;
  std::vector<BoundaryReport> boundaries;
  // Number of boundaries that are missing in `boundaries` because they were never stored.
  uint32_t omitted_boundaries = 0;
  std::vector<OtherFingerprint> other_fingerprints;
  std::string summary;

  // Adds boundaries that are usable in another place (the shared tier), but not in this store.
  void AddUsable(absl::Span<const BoundaryReport> elsewhere);
};

class StoreReader {
 public:
  virtual ~StoreReader() = default;

  // Looks up the longest stored prefix of the prompt. `max_tokens`: highest boundary (0: number of
  // tokens - 1). `above_tokens`: only higher boundaries are useful.
  virtual absl::StatusOr<std::unique_ptr<FetchSession>> Fetch(const PrefixQuery& query,
                                                              uint32_t above_tokens,
                                                              uint32_t max_tokens) = 0;
  // Opens a restore point by id, to copy it to another place. This is not a use: it is not counted
  // as a hit, and does not affect eviction and tiers.
  virtual absl::StatusOr<std::unique_ptr<FetchSession>> FetchById(const Digest& id,
                                                                  const std::string& tenant) = 0;
  virtual absl::StatusOr<ExplainReport> Explain(const PrefixQuery& query) = 0;
  // Remembers the readable fields of a fingerprint, so that Explain can name fields that differ.
  virtual void Observe(const Fingerprint& fingerprint, const std::string& tenant) = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_STORE_READER_H_
