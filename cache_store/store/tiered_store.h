// TieredStore: the cache node's core: looks up restore points, reads their slices, stores new ones.
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
#include "cache_store/disk/backup.h"
#include "cache_store/store/claim.h"
#include "cache_store/store/explain_report.h"
#include "cache_store/store/fetch.h"
#include "cache_store/store/options.h"
#include "cache_store/store/publish.h"
#include "cache_store/store/restore_point.h"
#include "cache_store/store/store_stats.h"
#include "proto/fingerprint.h"
#include "proto/segment_format.h"

namespace hearth {

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
