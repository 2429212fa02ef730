// StoreAdmin: lists, counts, pins and removes stored entries, notifies subscribers of changes, and
// lets processes on the same host map the store's memory.
//
// Thread safety: all methods from any thread.
#ifndef HEARTH_CACHE_STORE_STORE_STORE_ADMIN_H_
#define HEARTH_CACHE_STORE_STORE_STORE_ADMIN_H_

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
#include "cache_store/base/latency.h"
#include "cache_store/base/removal.h"
#include "cache_store/base/stats.h"
#include "cache_store/base/tenant_accounts.h"
#include "cache_store/disk/backup.h"
#include "cache_store/store/store_reader.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "proto/segment_format.h"

namespace hearth {

// Description of a restore point, as List() returns it.
struct RestorePoint {
  Digest id{};
  Digest fingerprint{};
  std::string tenant;
  uint32_t tokens = 0;
  uint64_t bytes = 0;
  Tier tier = Tier::kNone;  // slowest tier that a read of the whole restore point needs now
  bool durable = false;
  bool pinned = false;
  absl::Duration age;  // time since the last use
  // remaining time to live; a pinned point stays longer
  absl::Duration expires_in = absl::InfiniteDuration();
  uint64_t hits = 0;
  int priority = 0;                      // eviction priority, as in PublishBegin
  absl::Duration kept;                   // remaining time of the publisher's keep hint
  std::vector<uint32_t> last_token_ids;  // the last token ids of the prefix, at most 8
  // the token ids of the first segments, at least 32 unless the prefix is shorter; only from
  // Hottest()
  std::vector<uint32_t> first_token_ids;
};

struct DropResult {
  uint64_t dropped = 0, freed_bytes = 0, kept_pinned = 0;
};

struct QuarantineResult {
  uint32_t objects = 0;
  // Names of the publishers of the objects, each once; "" for objects stored before the store
  // opened.
  std::vector<std::string> publishers;
  // Not OK: the objects could not be erased from disk, so they may be served again after a crash.
  absl::Status on_disk;
};

// An event of the store. kLost: the subscriber was too slow, and events up to `sequence` were
// skipped; subscribe again for a snapshot. kLost has an empty restore point. kDurable: a restore
// point that was only in memory is now on disk. The values of the kinds are one less than in
// v1::WatchEvent.
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
  uint64_t sequence = 0;  // number of the event among the tenant's events, from 1 without gaps
  // The restore point as List() shows it right after the event. Changes of last use and tier cause
  // no event.
  RestorePoint restore_point;
  std::optional<Removal> removed;  // the reason, if the restore point was removed
};

// The position from which a subscriber resumes.
struct WatchFrom {
  // Number of the last event that the subscriber received, and the store's incarnation at that
  // time.
  uint64_t incarnation = 0, sequence = 0;
  // Whether to begin with a snapshot if the position is unknown or too old. False: only events from
  // now on.
  bool snapshot = true;
};
struct WatchStart {
  std::shared_ptr<void> subscription;  // the subscription, which ends when this is destroyed
  uint64_t incarnation = 0;            // number that differs for each opening of the store
  uint64_t sequence = 0;               // number of the last event before the callback's first event
  bool resumed = false;
  // if resumed: the events after WatchFrom::sequence, up to `sequence`
  std::vector<StoreEvent> missed;
  std::vector<RestorePoint> snapshot;  // if not resumed: the restore points stored at `sequence`
};

// Consecutive whole chunks of a restore point, with the ids that routers use for chunks.
struct ChunkRun {
  uint32_t chunk_tokens = 0;
  uint32_t first_chunk = 0;         // index of the first chunk in the prompt, from 0
  uint64_t parent_id = 0;           // id of the chunk before the first chunk; 0: none
  std::vector<uint64_t> ids;        // ChunkId() of each of the chunks
  std::vector<uint32_t> token_ids;  // token ids of the chunks, chunk_tokens for each
};

struct TierUsage {
  Tier tier = Tier::kNone;
  uint64_t bytes = 0, capacity_bytes = 0, objects = 0, evicted_restore_points = 0;
  // tokens of completely read restore points for which this was the slowest tier
  uint64_t hit_tokens = 0;
  uint64_t read_bytes = 0;     // bytes of slices read from the tier, by any method
  uint64_t written_bytes = 0;  // bytes of objects written to the tier since the store opened
  // part of written_bytes that was removed from the tier without being read
  uint64_t unread_bytes = 0;
};
// One latency histogram: of lookups, of slice reads or fetches of one tier, or of publishes of one
// durability.
struct LatencySeries {
  std::string name, help;
  std::string label, label_value;  // label of the metric; empty: no label
  LatencyCounts counts;
};
struct TenantFigures {
  uint64_t incarnation = 0;
  TenantUsage usage;
  TenantQuota quota;
};

// What a store contains, and what it has counted since it was opened.
struct StoreStats {
  uint64_t incarnation = 0;  // number that differs for each opening of the store
  std::vector<TierUsage> tiers;
  uint64_t restore_points = 0, objects = 0, pinned_bytes = 0;
  // RAM of the bookkeeping of restore points (by formula), and its limit (0: none). KV may use the
  // rest of host_bytes.
  uint64_t point_bytes = 0, point_limit_bytes = 0;
  uint64_t resident_bytes = 0;  // resident memory of the RAM tier, used or kept ready
  uint64_t staged_bytes = 0,
           most_staged_bytes = 0;  // memory of uncommitted publishes: now, and the maximum so far
  std::map<std::string, uint64_t> counters;  // value of each counter, by name (stats.h)
  std::map<std::string, uint64_t> removed;   // number of removed restore points, by RemovalName()
  std::vector<LatencySeries> latencies;

  uint64_t Of(Counter counter) const { return counters.at(CounterName(counter)); }
};

// A tier's memory, which other processes may map. The store owns the descriptors.
struct SharedMemory {
  int fd = -1;  // the segment
  SegmentLayout layout;
  int device_fd = -1;  // the data of a segment in device memory; -1: the data is in the segment
};

class StoreAdmin {
 public:
  virtual ~StoreAdmin() = default;

  virtual absl::StatusOr<RestorePoint> SetPinned(const Digest& id, const std::string& tenant,
                                                 bool pinned) = 0;
  virtual absl::StatusOr<DropResult> Drop(const Digest& id, const std::string& tenant,
                                          bool force) = 0;
  // Drops all restore points of the tenant. kFailedPrecondition, with their ids: some are pinned
  // and `force` is false.
  virtual absl::StatusOr<DropResult> DropAll(const std::string& tenant, bool force) = 0;
  // Removes these objects of the query's prompt, and all restore points that use them, only in the
  // query's tenant. For callers that proved the objects wrong although their digests match.
  // kNotFound: none of the objects is stored. kCancelled: the query's `stopped` returned true, and
  // nothing was removed.
  virtual absl::StatusOr<QuarantineResult> Quarantine(const PrefixQuery& query,
                                                      absl::Span<const ObjectId> objects) = 0;
  // Returns the restore points of the tenant; `tenant` may be kAllTenants.
  virtual std::vector<RestorePoint> List(const std::string& tenant) = 0;
  // Returns the restore points with the most hits of all tenants, at most `limit`; among equal
  // hits, the most recently used first. For operators only: never return the result to a caller of
  // the RPC service.
  virtual std::vector<RestorePoint> Hottest(size_t limit) = 0;
  virtual StoreStats Stats() = 0;
  virtual TenantFigures StatsOf(const std::string& tenant) = 0;
  // Returns the RAM tier's memory; nullopt unless StoreOptions::shared_memory is set.
  virtual std::optional<SharedMemory> shared_memory() const = 0;
  // Returns the gpu tier's memory; nullopt if there is no gpu tier, or its device cannot share
  // memory.
  virtual std::optional<SharedMemory> shared_device() const = 0;

  // Receives events: without a lock held, in order of their numbers, from one thread at a time,
  // possibly before Subscribe() returns.
  using EventCallback = std::function<void(const StoreEvent&)>;
  virtual WatchStart Subscribe(const std::string& tenant, const WatchFrom& from,
                               EventCallback callback) = 0;
  // Returns chunks of the tenant's restore point, from chunk `first` on: at least one, and more up
  // to `most_tokens` tokens. Nullopt if the restore point or the chunk does not exist, or if the
  // restore point ends inside a chunk: routers count whole chunks and cannot express such a
  // boundary.
  virtual std::optional<ChunkRun> ChunksOf(const Digest& id, const std::string& tenant,
                                           uint32_t first, uint32_t most_tokens) = 0;

  // Backs up the current contents of the disk to a backup folder (backup.h) while the store serves.
  // The backup has every entry that was acknowledged as `disk` or `sync` before the call.
  // kDataLoss: the data folder is damaged now, or was damaged when the store started and was not
  // repaired completely.
  virtual absl::StatusOr<BackupReport> BackUp(const std::string& to) = 0;
  // Waits until all queued background writes are on disk, or `deadline` has passed.
  virtual absl::Status Flush(absl::Time deadline) = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_STORE_ADMIN_H_
