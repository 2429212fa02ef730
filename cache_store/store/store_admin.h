// StoreAdmin: lists, counts, pins and removes what a store keeps, tells subscribers of changes, and
// lends its memory to processes of this host.
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
#include "cache_store/base/tenant_ledger.h"
#include "cache_store/disk/backup.h"
#include "cache_store/store/store_reader.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "proto/segment_format.h"

namespace hearth {

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
  absl::Duration kept;                   // the rest of the time that its hint keeps it
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
  std::optional<Removal> removed;  // set if the restore point left
};

// The place where a subscriber goes on.
struct WatchFrom {
  // The sequence of the last event that it has seen, and the store's incarnation then.
  uint64_t incarnation = 0, sequence = 0;
  // Begin with a snapshot if these are unknown or too old. False: events from now on only.
  bool snapshot = true;
};
struct WatchStart {
  std::shared_ptr<void> subscription;  // unsubscribes when destroyed
  uint64_t incarnation = 0;            // a different number for every opening of the store
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
  uint64_t hit_tokens = 0;     // of restore points read whole, if this was their slowest tier
  uint64_t read_bytes = 0;     // of slices, by any way
  uint64_t written_bytes = 0;  // of objects, since the store opened
  uint64_t unread_bytes = 0;   // of these, bytes that left the tier without having been read
};
// One histogram: lookups; slice reads or fetches of one tier; publishes of one durability.
struct LatencySeries {
  std::string name, help;
  std::string label, label_value;  // label empty: none
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
  // kFailedPrecondition, with their ids: some are pinned, and `force` is false.
  virtual absl::StatusOr<DropResult> DropAll(const std::string& tenant, bool force) = 0;
  // Never again serves these objects of the query's prompt, nor restore points that name them: they
  // are wrong, though their digests are right. In the query's own tenant only. kNotFound: none of
  // them is stored. kCancelled, by the query's `stopped`: nothing was removed.
  virtual absl::StatusOr<QuarantineResult> Quarantine(const PrefixQuery& query,
                                                      absl::Span<const ObjectId> objects) = 0;
  // `tenant` may be kAllTenants.
  virtual std::vector<RestorePoint> List(const std::string& tenant) = 0;
  // Restore points of all tenants with the most hits, at most `limit`, the most first; of equal
  // ones the last used. For operators: a caller's RPC must not show it.
  virtual std::vector<RestorePoint> Hottest(size_t limit) = 0;
  virtual StoreStats Stats() = 0;
  virtual TenantFigures StatsOf(const std::string& tenant) = 0;
  // The RAM tier's memory; none unless StoreOptions::shared_memory.
  virtual std::optional<SharedMemory> shared_memory() const = 0;
  // The gpu tier's memory; none if there is no such tier, or its device cannot share.
  virtual std::optional<SharedMemory> shared_device() const = 0;

  // Called under no lock, in order of sequence, from one thread at a time; maybe before Subscribe
  // returns.
  using EventCallback = std::function<void(const StoreEvent&)>;
  virtual WatchStart Subscribe(const std::string& tenant, const WatchFrom& from,
                               EventCallback callback) = 0;
  // Chunks of the tenant's own restore point from chunk `first` on: one, and more up to
  // `most_tokens`. None if there is no such restore point (any more), it has no such chunk, or it
  // ends inside a chunk, so that routers, which count in whole chunks, cannot name its boundary.
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

#endif  // HEARTH_CACHE_STORE_STORE_STORE_ADMIN_H_
