// TieredStore: the cache node's core: looks up restore points, reads their slices, stores new ones.
// With the sessions of a reader and of a publisher, and the values of all calls.
//
// A TieredStore keeps objects in a bounded host tier and a bounded disk tier. Restore points are
// its unit of visibility and eviction: a manifest commits last, names every object it needs and
// holds a reference on each. Readers and publishers work through sessions, which hold references
// too, so no object that a session promised is evicted during it.
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
#include "cache_store/base/device_memory.h"
#include "cache_store/base/latency.h"
#include "cache_store/base/prompt_chain.h"
#include "cache_store/base/removal.h"
#include "cache_store/base/slice_view.h"
#include "cache_store/base/stats.h"
#include "cache_store/base/tenant_ledger.h"
#include "cache_store/disk/backup.h"
#include "cache_store/store/options.h"
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
  KeepHint hint = {};  // published again without one, a point keeps that which it has
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

// Whether a caller that misses should compute or wait, so that each prefix is computed once.
enum class ClaimRole {
  kNone,     // go on: fetch what is usable, compute the rest, promise nothing
  kWait,     // another computes `boundary`: ask again when woken, or at `until`
  kCompute,  // compute and publish by `until`; others wait. May fetch what is usable first
};
struct ClaimRequest {
  uint32_t above_tokens = 0;    // where the caller starts otherwise
  uint32_t max_tokens = 0;      // as Fetch
  uint32_t min_tokens = 0;      // less to gain is not worth a wait or a promise
  absl::Duration compute_time;  // zero: it will not publish
  absl::Time wait_until = absl::InfinitePast();
  uint32_t waited_for = 0;  // the boundary of the wait that ended; 0: the first time
  // Called at most once, under no lock; not after the ticket is gone, except for a call in
  // progress.
  std::function<void()> wake;
};
struct ClaimDecision {
  ClaimRole role = ClaimRole::kNone;
  uint32_t usable_tokens = 0;   // stored by now
  uint32_t boundary = 0;        // kWait: waited for; kCompute: the highest that is promised
  uint32_t matched_tokens = 0;  // as LookupPlan, or of a prompt that another computes
  absl::Time until;
  // Its destruction ends a wait, or a claim, which one of the waiting callers takes over.
  std::shared_ptr<void> ticket;
};

// Why a boundary cannot be used.
enum class MissReason {
  kNone,         // it is usable
  kNeverStored,  // or so long ago that the store has forgotten it
  kRemoved,      // BoundaryReport::removed says by what
  kTailGone,     // the local layers' last tokens; `removed` when they were there once
  kGlobalsGone,  // the global layers before it; `removed` likewise
  kOtherCuts,    // the tokens are there, cut elsewhere
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
  std::string reason;          // all of it in words
  std::optional<Digest> restore_point_id;
  // Usable because it is PrefixQuery::public_tenant's. Then without age, pin and id, which would
  // tell of others' use of it.
  bool from_public = false;
};
struct OtherFingerprint {
  FieldDifference difference;
  uint32_t matched_tokens = 0;
};
// How much of a prompt can be served and why, boundary by boundary.
struct ExplainReport {
  uint32_t matched_tokens = 0;
  uint32_t usable_tokens = 0;
  std::vector<BoundaryReport> boundaries;
  // Boundaries that were never stored, left out of `boundaries` since there is nothing else to say.
  uint32_t omitted_boundaries = 0;
  std::vector<OtherFingerprint> other_fingerprints;
  std::string summary;

  // Boundaries that can be used from elsewhere, where those here cannot.
  void AddUsable(absl::Span<const BoundaryReport> elsewhere);
};

// As the store lists it.
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
  int priority = 0;                      // as PublishBegin's
  absl::Duration kept;                   // for so long, as it says
  std::vector<uint32_t> last_token_ids;  // at most 8
};

struct DropResult {
  uint64_t dropped = 0, freed_bytes = 0, kept_pinned = 0;
};

struct QuarantineResult {
  uint32_t objects = 0;
  // Who published them, each once; "" for objects that were stored before the store opened.
  std::vector<std::string> publishers;
  // Not OK: the disk could not erase them, so they may be served again after a crash.
  absl::Status on_disk;
};

// kLost: the subscriber was too slow, and events up to `sequence` were skipped; subscribe again for
// a snapshot. Its restore point is empty. kDurable: a restore point that was only in memory is on
// disk now. Values are one less than those of v1::WatchEvent.
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
  // As List shows it right after the event. Changes of its last use and its tier are no events.
  RestorePoint restore_point;
  std::optional<Removal> removed;  // set where the restore point left
};

// The place where a subscriber goes on.
struct WatchFrom {
  // The sequence of the last event that it has seen, and the store's incarnation then.
  uint64_t incarnation = 0, sequence = 0;
  // Begin with a snapshot where these are unknown or too old. False: events from now on only.
  bool snapshot = true;
};
struct WatchStart {
  std::shared_ptr<void> subscription;  // unsubscribes when destroyed
  uint64_t sequence = 0;               // the callback's first event has the next one
  bool resumed = false;
  std::vector<StoreEvent> missed;      // resumed: all after WatchFrom::sequence, up to `sequence`
  std::vector<RestorePoint> snapshot;  // otherwise: what was stored at `sequence`
};

// Some whole chunks of a restore point, with the numbers that routers know them by.
struct ChunkRun {
  uint32_t chunk_tokens = 0;
  uint32_t first_chunk = 0;         // its place in the prompt, from 0
  uint64_t parent_id = 0;           // of the chunk before the first; 0: there is none
  std::vector<uint64_t> ids;        // ChunkId() of each
  std::vector<uint32_t> token_ids;  // chunk_tokens for each
};

struct TierUsage {
  Tier tier = Tier::kNone;
  uint64_t bytes = 0, capacity_bytes = 0, objects = 0, evicted_restore_points = 0;
  uint64_t hit_tokens = 0;  // of restore points read whole, whose slowest tier this was in the end
  uint64_t read_bytes = 0;  // of slices, whatever way they went out
  uint64_t written_bytes = 0;  // of objects, since the store opened
  uint64_t unread_bytes = 0;   // of those, what left the tier without ever having been read from it
};
// One histogram: lookups; slice reads or fetches of one tier; publishes of one durability.
struct LatencySeries {
  std::string name, help;
  std::string label, label_value;  // label empty: none
  LatencyCounts counts;
};
struct TenantFigures {
  TenantUsage usage;
  TenantQuota quota;
};

// A store's contents, and its counts since it was opened.
struct StoreStats {
  uint64_t incarnation = 0;
  std::vector<TierUsage> tiers;
  uint64_t restore_points = 0, objects = 0, pinned_bytes = 0;
  // RAM of the restore points' bookkeeping, by formula, and its limit (0: none). The KV gets the
  // rest of host_bytes.
  uint64_t point_bytes = 0, point_limit_bytes = 0;
  uint64_t resident_bytes = 0;                       // of the RAM tier's memory, used or ready
  uint64_t staged_bytes = 0, most_staged_bytes = 0;  // of publishes not committed; ever
  std::map<std::string, uint64_t> counters;          // names in stats.h
  std::map<std::string, uint64_t> removed;           // restore points, by RemovalName
  std::vector<LatencySeries> latencies;

  uint64_t Of(Counter counter) const { return counters.at(CounterName(counter)); }
};

// The host tier's memory, for other processes to map. The store owns the descriptor.
struct SharedMemory {
  int fd = -1;
  SegmentLayout layout;
};

class TieredStore {
 public:
  // Opens or creates the data folder, rebuilds the index from its manifests, and erases objects
  // that no manifest names.
  // kFailedPrecondition when another process holds the folder or its version is newer; kDataLoss
  // only when the folder cannot be read at all.
  static absl::StatusOr<std::unique_ptr<TieredStore>> Open(const StoreOptions& options);
  virtual ~TieredStore() = default;

  // `max_tokens`: highest boundary (0: tokens - 1). `above_tokens`: lower ones are of no use.
  virtual absl::StatusOr<std::unique_ptr<FetchSession>> Fetch(const PrefixQuery& query,
                                                              uint32_t above_tokens,
                                                              uint32_t max_tokens) = 0;
  // How much of a prompt is stored, of the tenant's own and of the public tenant's, and the keys by
  // which that was found. Not a lookup: it counts nothing, and changes nothing of what is kept.
  struct Peeked {
    uint32_t own = 0, of_public = 0;
    std::vector<ChainPtr> chains;
  };
  virtual Peeked Peek(const PrefixQuery& query, uint32_t max_tokens) = 0;
  // For a copy elsewhere: not a use, so it neither counts as a hit nor changes what is kept and
  // where.
  virtual absl::StatusOr<std::unique_ptr<FetchSession>> FetchById(const Digest& id,
                                                                  const std::string& tenant) = 0;
  virtual absl::StatusOr<std::unique_ptr<PublishSession>> Publish(PublishSpec spec) = 0;

  // Decides whether the caller computes or waits. The fingerprint's fields must be known (Observe).
  virtual absl::StatusOr<ClaimDecision> Claim(const PrefixQuery& query, ClaimRequest ask) = 0;

  // Learns a fingerprint's readable fields, so that Explain can name what differs.
  virtual void Observe(const Fingerprint& fingerprint, const std::string& tenant) = 0;
  virtual absl::StatusOr<ExplainReport> Explain(const PrefixQuery& query) = 0;
  virtual absl::StatusOr<RestorePoint> SetPinned(const Digest& id, const std::string& tenant,
                                                 bool pinned) = 0;
  virtual absl::StatusOr<DropResult> Drop(const Digest& id, const std::string& tenant,
                                          bool force) = 0;
  // kFailedPrecondition, with their ids: some are pinned, and it is not by force.
  virtual absl::StatusOr<DropResult> DropAll(const std::string& tenant, bool force) = 0;
  // For a tier in front: as DropAll, where the tenant's number is smaller; else nothing. What is
  // stored from then on lies under this number, which outlives the process, and nothing that lies
  // under a smaller one is found. An error of the disk: all of it was dropped, and may come back
  // after a crash.
  virtual absl::StatusOr<DropResult> RaiseDropNumber(const std::string& tenant, uint64_t number,
                                                     bool force) = 0;
  virtual uint64_t DropNumber(const std::string& tenant) = 0;  // 0: none
  // Never again serves these objects of the query's prompt, nor restore points that name them: they
  // are wrong, though their digests are right. In the query's own tenant only. kNotFound: none of
  // them is stored. kCancelled, by the query's `stopped`: nothing was removed.
  virtual absl::StatusOr<QuarantineResult> Quarantine(const PrefixQuery& query,
                                                      absl::Span<const ObjectId> objects) = 0;
  virtual std::vector<RestorePoint> List(const std::string& tenant) = 0;
  // Restore points of all tenants with the most hits, at most `limit`, the most first; of equal
  // ones the last used. For operators: a caller's RPC must not show it.
  virtual std::vector<RestorePoint> Hottest(size_t limit) = 0;
  virtual StoreStats Stats() = 0;
  virtual TenantFigures StatsOf(const std::string& tenant) = 0;
  // A different number for every opening.
  virtual uint64_t incarnation() const = 0;
  // None unless StoreOptions::shared_memory.
  virtual std::optional<SharedMemory> shared_memory() const = 0;
  // The gpu tier's memory; none where there is no such tier, or its device cannot share.
  virtual std::optional<SharedMemory> shared_device() const = 0;
  // Uninitialised memory for a slice of a publish to come: where it will stay, when there is room.
  virtual std::shared_ptr<std::byte> AllocateSlice(size_t bytes) = 0;
  // Waits until the memory for the next publishes is ready. For tests and benchmarks.
  virtual void WaitForMemory() = 0;

  // Called under no lock, in order of sequence, from one thread at a time; maybe before Subscribe
  // returns.
  using EventCallback = std::function<void(const StoreEvent&)>;
  virtual WatchStart Subscribe(const std::string& tenant, const WatchFrom& from,
                               EventCallback callback) = 0;

  // Chunks of the tenant's own restore point from the one numbered `first` on: one, and more up to
  // `most_tokens`. None when there is no such one (any more), it has no such chunk, or ends inside
  // a chunk: who counts in whole chunks cannot name its boundary.
  virtual std::optional<ChunkRun> ChunksOf(const Digest& id, const std::string& tenant,
                                           uint32_t first, uint32_t most_tokens) = 0;

  // Copies what is on disk at this moment to a backup folder (backup.h) while the store serves. All
  // that was acknowledged as `disk` or `sync` before the call is in it. kDataLoss: the data folder
  // is damaged, or was when the store started and not all of it could be repaired.
  virtual absl::StatusOr<BackupReport> BackUp(const std::string& to) = 0;

  // Waits until every write-behind reached the disk or `deadline` passed.
  virtual absl::Status Flush(absl::Time deadline) = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_TIERED_STORE_H_
