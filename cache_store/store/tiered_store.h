// The cache node's core: looks up restore points, hands out their slices, takes in new ones.
//
// A TieredStore keeps objects in a bounded host tier and a bounded disk tier. Restore points are
// its unit of visibility and eviction: a manifest commits last, names every object it needs and
// holds a reference on each. Readers and publishers work through sessions, which hold references
// too, so nothing promised is evicted under them.
//
// Thread safety: all methods of all classes here may be called from any thread, but one session is
// used by one thread at a time. Sessions must not outlive their store.
// Errors: kInvalidArgument (caller), kResourceExhausted (full; retry later), kDataLoss (bytes
// failed verification: already quarantined), kAborted (same key, other bytes), kNotFound (unknown
// id). A miss is a plan with usable_tokens == 0, never an error.
#ifndef HEARTH_CACHE_STORE_STORE_TIERED_STORE_H_
#define HEARTH_CACHE_STORE_STORE_TIERED_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache_store/base/device_copy.h"
#include "cache_store/base/latency.h"
#include "cache_store/base/removal.h"
#include "cache_store/base/slice_view.h"
#include "cache_store/base/stats.h"
#include "cache_store/disk/backup.h"
#include "cache_store/store/options.h"
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
  virtual DeviceLease OnDevice(size_t object) = 0;
  // Where it lies in the shared device memory, safe from reuse until this session ends.
  virtual std::optional<SegmentRange> ShareOnDevice(size_t object) = 0;
};

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
  // How long the restore points live from their commit on. Zero: as long as the tenant's default
  // says; where there is none either, one that was published before ends when it would have ended.
  // Published again with a time to live, a point lives as long as the longer of the two.
  absl::Duration ttl;
  std::function<bool()> stopped = nullptr;  // as PrefixQuery's
  std::string publisher = "";               // who it is, for QuarantineResult
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
  // Uninitialised memory for the slice that is to be put next: where it is to stay, when there is
  // room. Counted as staged before it is taken; kResourceExhausted names the limit.
  virtual absl::StatusOr<std::shared_ptr<std::byte>> AllocateSlice(size_t bytes) = 0;
  // Takes one whole slice; copies or keeps `owner` alive. Counts what AllocateSlice did not.
  // Verified against its announced digest.
  virtual absl::Status PutSlice(uint32_t object, uint32_t layer, SliceView slice) = 0;
  // Manifest last; returns once the asked durability is reached. Boundaries whose objects did not
  // all arrive are left out with a note.
  virtual absl::StatusOr<PublishResult> Commit() = 0;
};

// One computation a prefix: what a caller that misses is to do.
enum class LeaseRole {
  kNone,     // go on: fetch what is usable, compute the rest, promise nothing
  kWait,     // another computes `boundary`: ask again when woken, or at `until`
  kCompute,  // compute and publish by `until`; others wait. May fetch what is usable first
};
struct LeaseAsk {
  uint32_t above_tokens = 0;  // what the caller goes on from otherwise
  uint32_t max_tokens = 0;    // as Fetch
  uint32_t min_tokens = 0;    // less to gain is not worth a wait or a promise
  absl::Duration lease;       // zero: it will not publish
  absl::Time wait_until = absl::InfinitePast();
  uint32_t waited_for = 0;  // the boundary of the wait that ended; 0: the first time
  // Called at most once, under no lock; not once the ticket is gone, but for a call in progress.
  std::function<void()> wake;
};
struct LeaseTurn {
  LeaseRole role = LeaseRole::kNone;
  uint32_t usable_tokens = 0;   // stored by now
  uint32_t boundary = 0;        // kWait: waited for; kCompute: the highest that is promised
  uint32_t matched_tokens = 0;  // as LookupPlan, or of a prompt that another computes
  absl::Time until;
  // Its end gives the place up: a wait is left, a lease ends and one who waits takes over.
  std::shared_ptr<void> ticket;
};

struct RestorePoint {
  Digest id{};
  Digest fingerprint{};
  std::string tenant;
  uint32_t tokens = 0;
  uint64_t bytes = 0;
  Tier tier = Tier::kNone;  // slowest tier needed to read all of it now
  bool durable = false;
  bool pinned = false;
  absl::Duration age;                                    // since last use
  absl::Duration expires_in = absl::InfiniteDuration();  // a pin holds it longer
  uint64_t hits = 0;
  std::vector<uint32_t> last_token_ids;  // at most 8
};

// Why a boundary cannot be used.
enum class MissReason {
  kNone,         // it can
  kNeverStored,  // or so long ago that the store has forgotten it
  kRemoved,      // BoundaryReport::removed says by what
  kTailGone,     // the local layers' last tokens; `removed` when they were there once
  kGlobalsGone,  // the global layers before it; `removed` likewise
  kOtherCuts,    // the tokens are there, cut elsewhere
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
  std::string reason;          // all of it in words
  std::optional<Digest> restore_point_id;
  // Usable because it is PrefixQuery::public_tenant's. Then without age, pin and id: those tell of
  // others' use of it.
  bool from_public = false;
};
struct OtherFingerprint {
  FieldDifference difference;
  uint32_t matched_tokens = 0;
};
struct ExplainReport {
  uint32_t matched_tokens = 0;
  uint32_t usable_tokens = 0;
  std::vector<BoundaryReport> boundaries;
  // Never stored, and not among `boundaries` since there is nothing else to say of them.
  uint32_t omitted_boundaries = 0;
  std::vector<OtherFingerprint> other_fingerprints;
  std::string summary;
};

struct TierUsage {
  Tier tier = Tier::kNone;
  uint64_t bytes = 0, capacity_bytes = 0, objects = 0, evicted_restore_points = 0;
  uint64_t hit_tokens = 0;  // of restore points read whole, whose slowest tier this was in the end
  uint64_t read_bytes = 0;  // of slices, whatever way they went out
  uint64_t written_bytes = 0;  // of objects, since the store opened
  uint64_t unread_bytes = 0;   // of those, what left the tier without ever having been read from it
};
// One histogram: of lookups, of reads of slices and fetches by tier, of publishes by durability.
struct LatencySeries {
  std::string name, help;
  std::string label, label_value;  // label empty: none
  LatencyCounts counts;
};
struct TenantFigures {
  TenantUsage usage;
  TenantQuota quota;
};

struct StoreStats {
  uint64_t incarnation = 0;
  std::vector<TierUsage> tiers;
  uint64_t restore_points = 0, objects = 0, pinned_bytes = 0;
  uint64_t unloaded_restore_points = 0;              // on disk, and not in the index yet
  uint64_t resident_bytes = 0;                       // of the RAM tier's memory, used or ready
  uint64_t staged_bytes = 0, most_staged_bytes = 0;  // of publishes not committed; ever
  std::map<std::string, uint64_t> counters;          // names in stats.h
  std::map<std::string, uint64_t> removed;           // restore points, by RemovalName
  std::vector<LatencySeries> latencies;

  uint64_t Of(Counter counter) const { return counters.at(CounterName(counter)); }
};

// kLost: the subscriber was too slow, and events up to `sequence` were skipped; subscribe again for
// a snapshot. Its restore point is empty. kDurable: one that was in memory only is on disk now.
// Values are those of v1::WatchEvent, less one.
struct StoreEvent {
  enum class Kind {
    kStored,
    kEvicted,
    kPinned,
    kUnpinned,
    kDropped,
    kQuarantined,
    kLost,
    kDurable = 9
  };
  Kind kind = Kind::kStored;
  uint64_t sequence = 0;  // counts each tenant's events, from 1, without a gap
  // As List shows it right after the event. Its use and its tier change without one.
  RestorePoint restore_point;
  std::optional<Removal> removed;  // set where the restore point left
};

// Where a subscriber goes on.
struct WatchFrom {
  // What it has seen: sequence of its last event, and of which incarnation.
  uint64_t incarnation = 0, sequence = 0;
  // Take the snapshot where these are unknown or too old. False: events from now on only.
  bool snapshot = true;
};
struct WatchStart {
  std::shared_ptr<void> subscription;  // unsubscribes when destroyed
  uint64_t sequence = 0;               // the callback's first event has the next one
  bool resumed = false;
  std::vector<StoreEvent> missed;      // resumed: all after WatchFrom::sequence, up to `sequence`
  std::vector<RestorePoint> snapshot;  // otherwise: what was stored at `sequence`
};

// The host tier's memory as others may map it. The descriptor stays the store's.
struct SharedMemory {
  int fd = -1;
  SegmentLayout layout;
};

struct DropResult {
  uint64_t dropped = 0, freed_bytes = 0, kept_pinned = 0;
};

struct QuarantineResult {
  uint32_t objects = 0;
  // Who published them, each once; "" stands for those that were stored when the store opened.
  std::vector<std::string> publishers;
  // Why they may be served again after a crash: the disk would not let go of them.
  absl::Status on_disk;
};

class TieredStore {
 public:
  // Opens or creates the data folder, rebuilds the index from its manifests, collects what no
  // manifest names (the last two maybe later: StoreOptions::load_in_background).
  // kFailedPrecondition when another process holds the folder or its version is newer; kDataLoss
  // only when the folder cannot be read at all.
  static absl::StatusOr<std::unique_ptr<TieredStore>> Open(const StoreOptions& options);
  virtual ~TieredStore() = default;

  // `max_tokens`: highest boundary (0: tokens - 1). `above_tokens`: lower ones are of no use.
  virtual absl::StatusOr<std::unique_ptr<FetchSession>> Fetch(const PrefixQuery& query,
                                                              uint32_t above_tokens,
                                                              uint32_t max_tokens) = 0;
  // For a copy elsewhere: no use of the restore point, so it neither counts as a hit nor changes
  // what is kept and where.
  virtual absl::StatusOr<std::unique_ptr<FetchSession>> FetchById(const Digest& id,
                                                                  const std::string& tenant) = 0;
  virtual absl::StatusOr<std::unique_ptr<PublishSession>> Publish(PublishSpec spec) = 0;

  // Decides whether the caller computes or waits. The fingerprint's fields must be known (Observe).
  virtual absl::StatusOr<LeaseTurn> Lease(const PrefixQuery& query, LeaseAsk ask) = 0;

  // Learns a fingerprint's readable fields, so that Explain can name what differs.
  virtual void Observe(const Fingerprint& fingerprint, const std::string& tenant) = 0;
  virtual absl::StatusOr<ExplainReport> Explain(const PrefixQuery& query) = 0;
  virtual absl::StatusOr<RestorePoint> SetPinned(const Digest& id, const std::string& tenant,
                                                 bool pinned) = 0;
  virtual absl::StatusOr<DropResult> Drop(const Digest& id, const std::string& tenant,
                                          bool force) = 0;
  virtual absl::StatusOr<DropResult> DropAll(const std::string& tenant, bool force) = 0;
  // Never serves these objects of the query's prompt again, nor what names them: they are there
  // with the right digests, and wrong. In the query's own tenant only. kNotFound: none of them is
  // there. kCancelled, by the query's `stopped`: nothing was taken out.
  virtual absl::StatusOr<QuarantineResult> Quarantine(const PrefixQuery& query,
                                                      absl::Span<const ObjectId> objects) = 0;
  virtual std::vector<RestorePoint> List(const std::string& tenant) = 0;
  // Restore points of all tenants with the most hits, at most `limit`, the most first; of equal
  // ones the last used. For operators: a caller's RPC must not show it.
  virtual std::vector<RestorePoint> Hottest(size_t limit) = 0;
  virtual StoreStats Stats() = 0;
  virtual TenantFigures StatsOf(const std::string& tenant) = 0;
  // Another one for every opening.
  virtual uint64_t incarnation() const = 0;
  // None unless StoreOptions::shared_memory.
  virtual std::optional<SharedMemory> shared_memory() const = 0;
  // The gpu tier's, likewise; none where there is no such tier, or its device cannot share.
  virtual std::optional<SharedMemory> shared_device() const = 0;
  // Until the memory that is kept ready for the next publishes is. For tests and benchmarks.
  virtual void WaitForMemory() = 0;

  // Called under no lock, in order of sequence, from one thread at a time; maybe before Subscribe
  // returns.
  using EventCallback = std::function<void(const StoreEvent&)>;
  virtual WatchStart Subscribe(const std::string& tenant, const WatchFrom& from,
                               EventCallback callback) = 0;

  // Copies what is on disk at this moment to a backup folder (backup.h), beside everything else.
  // What was acknowledged as `disk` or `sync` before the call is in it. kDataLoss: the data folder
  // is damaged, or was when the store started and not all of it could be put right; kUnavailable:
  // that is not known yet.
  virtual absl::StatusOr<BackupReport> BackUp(const std::string& to) = 0;

  // Waits until every write-behind reached the disk or `deadline` passed.
  virtual absl::Status Flush(absl::Time deadline) = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_TIERED_STORE_H_
