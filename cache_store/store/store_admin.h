// StoreAdmin: lists, counts, pins and removes stored entries, notifies subscribers of changes, and
// shares the store's memory with processes on the same host.
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

// A restore point as listed by the store.
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
  absl::Duration expires_in = absl::InfiniteDuration();  // a pin keeps it longer
  uint64_t hits = 0;
  int priority = 0;                      // as in PublishBegin
  absl::Duration kept;                   // remaining time of its keep hint
  std::vector<uint32_t> last_token_ids;  // at most 8
};

struct DropResult {
  uint64_t dropped = 0, freed_bytes = 0, kept_pinned = 0;
};

struct QuarantineResult {
  uint32_t objects = 0;
  // Publishers of the objects, each once; "" for objects stored before the store opened.
  std::vector<std::string> publishers;
  // Not OK: the objects could not be erased from disk and may be served again after a crash.
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
  // As List shows it right after the event. Changes of last use and tier cause no event.
  RestorePoint restore_point;
  std::optional<Removal> removed;  // set if the restore point was removed
};

// Position at which a subscriber resumes.
struct WatchFrom {
  // Sequence of the last event it has seen, and the store's incarnation at that time.
  uint64_t incarnation = 0, sequence = 0;
  // Start with a snapshot if the position is unknown or too old. False: only events from now on.
  bool snapshot = true;
};
struct WatchStart {
  std::shared_ptr<void> subscription;  // unsubscribes when destroyed
  uint64_t incarnation = 0;            // a different number for every opening of the store
  uint64_t sequence = 0;               // the callback's first event has the next sequence
  bool resumed = false;
  std::vector<StoreEvent> missed;  // if resumed: all after WatchFrom::sequence, up to `sequence`
  std::vector<RestorePoint> snapshot;  // otherwise: the entries stored at `sequence`
};

// Consecutive whole chunks of a restore point, with the ids used by routers.
struct ChunkRun {
  uint32_t chunk_tokens = 0;
  uint32_t first_chunk = 0;         // index in the prompt, from 0
  uint64_t parent_id = 0;           // id of the chunk before the first; 0: none
  std::vector<uint64_t> ids;        // ChunkId() of each chunk
  std::vector<uint32_t> token_ids;  // chunk_tokens for each chunk
};

struct TierUsage {
  Tier tier = Tier::kNone;
  uint64_t bytes = 0, capacity_bytes = 0, objects = 0, evicted_restore_points = 0;
  uint64_t hit_tokens = 0;     // of completely read restore points, if this was their slowest tier
  uint64_t read_bytes = 0;     // of slices, by any method
  uint64_t written_bytes = 0;  // of objects, since the store opened
  uint64_t unread_bytes = 0;   // part of these that left the tier without being read
};
// One histogram: of lookups, of slice reads or fetches of one tier, or of publishes of one
// durability.
struct LatencySeries {
  std::string name, help;
  std::string label, label_value;  // empty label: no label
  LatencyCounts counts;
};
struct TenantFigures {
  uint64_t incarnation = 0;
  TenantUsage usage;
  TenantQuota quota;
};

// A store's contents, and its counts since it was opened.
struct StoreStats {
  uint64_t incarnation = 0;  // a different number for every opening
  std::vector<TierUsage> tiers;
  uint64_t restore_points = 0, objects = 0, pinned_bytes = 0;
  // RAM of the restore points' bookkeeping, by formula, and its limit (0: none). KV gets the rest
  // of host_bytes.
  uint64_t point_bytes = 0, point_limit_bytes = 0;
  uint64_t resident_bytes = 0;  // resident memory of the RAM tier, used or ready
  uint64_t staged_bytes = 0,
           most_staged_bytes = 0;  // of uncommitted publishes: now, and the maximum so far
  std::map<std::string, uint64_t> counters;  // by name (stats.h)
  std::map<std::string, uint64_t> removed;   // restore points, by RemovalName
  std::vector<LatencySeries> latencies;

  uint64_t Of(Counter counter) const { return counters.at(CounterName(counter)); }
};

// Memory of a tier for other processes to map. The store owns the descriptor.
struct SharedMemory {
  int fd = -1;
  SegmentLayout layout;
};

class StoreAdmin {
 public:
  virtual ~StoreAdmin() = default;

  virtual absl::StatusOr<RestorePoint> SetPinned(const Digest& id, const std::string& tenant,
                                                 bool pinned) = 0;
  virtual absl::StatusOr<DropResult> Drop(const Digest& id, const std::string& tenant,
                                          bool force) = 0;
  // kFailedPrecondition, with their ids: some points are pinned, and `force` is false.
  virtual absl::StatusOr<DropResult> DropAll(const std::string& tenant, bool force) = 0;
  // Removes these objects of the query's prompt and all restore points that use them, for callers
  // that proved the objects wrong although their digests match. Only in the query's own tenant.
  // kNotFound: none of them is stored. kCancelled: the query's `stopped` returned true; nothing was
  // removed.
  virtual absl::StatusOr<QuarantineResult> Quarantine(const PrefixQuery& query,
                                                      absl::Span<const ObjectId> objects) = 0;
  // `tenant` may be kAllTenants.
  virtual std::vector<RestorePoint> List(const std::string& tenant) = 0;
  // Returns the restore points of all tenants with the most hits, at most `limit`, most hits first,
  // then most recently used. For operators only: must not be visible in a caller's RPC.
  virtual std::vector<RestorePoint> Hottest(size_t limit) = 0;
  virtual StoreStats Stats() = 0;
  virtual TenantFigures StatsOf(const std::string& tenant) = 0;
  // Returns the RAM tier's memory; nullopt unless StoreOptions::shared_memory.
  virtual std::optional<SharedMemory> shared_memory() const = 0;
  // Returns the gpu tier's memory; nullopt if there is no such tier, or its device cannot share.
  virtual std::optional<SharedMemory> shared_device() const = 0;

  // Called without a lock, in order of sequence, by one thread at a time; possibly before Subscribe
  // returns.
  using EventCallback = std::function<void(const StoreEvent&)>;
  virtual WatchStart Subscribe(const std::string& tenant, const WatchFrom& from,
                               EventCallback callback) = 0;
  // Returns chunks of the tenant's own restore point from chunk `first` on: at least one, and more
  // up to `most_tokens`. Nullopt if the restore point or the chunk does not exist (any longer), or
  // if the point ends inside a chunk: routers count whole chunks and cannot name such a boundary.
  virtual std::optional<ChunkRun> ChunksOf(const Digest& id, const std::string& tenant,
                                           uint32_t first, uint32_t most_tokens) = 0;

  // Copies the current contents of the disk to a backup folder (backup.h) while the store serves.
  // The backup has every entry acknowledged as `disk` or `sync` before the call. kDataLoss: the
  // data folder is damaged, or was damaged when the store started and could not be repaired
  // completely.
  virtual absl::StatusOr<BackupReport> BackUp(const std::string& to) = 0;
  // Waits until every write-behind is on disk or `deadline` has passed.
  virtual absl::Status Flush(absl::Time deadline) = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_STORE_ADMIN_H_
