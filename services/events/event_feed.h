// EventFeed: turns what a store's watch tells into numbered batches for routers.
//
// Reported are restore points that end at a whole chunk, of one fingerprint: their chunks are the
// blocks. Numbers begin at the microsecond of the start, so that a program that was started anew
// goes on above its former numbers, and its subscribers see a gap rather than a repetition.
// Thread safety: all methods from any thread.
#ifndef HEARTH_SERVICES_EVENTS_EVENT_FEED_H_
#define HEARTH_SERVICES_EVENTS_EVENT_FEED_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/cache_store.pb.h"
#include "services/events/batch_log.h"
#include "services/events/block_ledger.h"
#include "services/events/kv_batch.h"

namespace hearth {

struct EventFeedOptions {
  KvLabels labels{"CPU", ""};
  // Its digest's first hexadecimal digits; empty: that of the first restore point, and of the next
  // one once none is left of it.
  std::string fingerprint;
  uint64_t max_blocks = 1000000;  // each takes some 100 bytes, and 4 for each of its tokens
  uint64_t max_batches = 10000;   // kept for replays, as far as max_batch_bytes has room
  uint64_t max_batch_bytes = 256 << 20;
};

// Where a watch goes on; all 0: at the beginning.
struct WatchPlace {
  uint64_t incarnation = 0, sequence = 0;
};

struct FeedFigures {
  size_t blocks = 0, points = 0;
  uint64_t batches = 0;
  // Restore points that were not reported: for want of room, or contradicting others; and those of
  // other fingerprints.
  uint64_t left_out = 0, of_others = 0;
};
// For people: "40 blocks of 2 restore points; 1 left out, 0 of other fingerprints".
std::string FiguresText(const FeedFigures& figures);

class EventFeed {
 public:
  // Begins with one batch: all blocks are cleared.
  EventFeed(const EventFeedOptions& options, absl::Time now);

  // False: the watch has to be begun anew, at place().
  bool Take(const v1::WatchEvent& event, absl::Time now);
  // A watch was begun: whatever the last one did not tell in full comes again.
  void BeginWatch();
  WatchPlace place() const;

  // Batches from `number` on, as far as they are kept.
  std::vector<KvBatch> From(uint64_t number, size_t most) const;
  // What brings someone up to date who has all batches before `number`: those from it on or, where
  // one is not kept any more, everything told anew, numbered so that the last published number is
  // its last and its first is `number` or above: where that takes more numbers than there are,
  // batches without events are published. Asked for twice without a change between, the same
  // payloads.
  std::vector<KvBatch> Replay(uint64_t number, absl::Time now);
  // A line for people, once: that restore points of another fingerprint are passed over, or are
  // those that are told from now on. Empty: there is none.
  std::string TakeNotice();
  uint64_t first_number() const { return first_number_; }
  uint64_t next_number() const;
  FeedFigures figures() const;
  // Called without a lock after batches were added. Before any other thread uses the feed.
  void OnBatches(std::function<void()> wake) { wake_ = std::move(wake); }

 private:
  // A restore point whose blocks are still coming.
  struct OpenPoint {
    PointBlocks blocks;
    uint32_t chunks = 0;  // that it has in all
    bool in_snapshot = false;
  };

  void Apply(const v1::WatchEvent& event, std::vector<KvEvent>* events)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Begin(const v1::WatchEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Extend(const v1::ChunkRun& run, std::vector<KvEvent>* events)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // That none is left of our fingerprint, and restore points were passed over for it.
  bool IsForOthers() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsOurs(const std::string& fingerprint) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Publish(const std::vector<KvEvent>& events, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // All blocks in batches that have no numbers yet.
  std::vector<KvBatch> Everything(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const EventFeedOptions options_;
  const uint64_t first_number_;
  std::function<void()> wake_ = [] {};
  mutable absl::Mutex mutex_;
  BlockLedger ledger_ ABSL_GUARDED_BY(mutex_);
  BatchLog log_ ABSL_GUARDED_BY(mutex_);
  std::string fingerprint_ ABSL_GUARDED_BY(mutex_);  // the digest's bytes, once known
  // Since it is known: a restore point of another one came, and a line about that was written.
  bool has_others_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_noted_others_ ABSL_GUARDED_BY(mutex_) = false;
  std::string notice_ ABSL_GUARDED_BY(mutex_);  // not taken yet
  WatchPlace place_ ABSL_GUARDED_BY(mutex_);
  std::optional<OpenPoint> open_ ABSL_GUARDED_BY(mutex_);
  bool in_snapshot_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<std::string> listed_ ABSL_GUARDED_BY(mutex_);  // by the snapshot so far
  uint64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0, of_others_ ABSL_GUARDED_BY(mutex_) = 0;
  // The last answer of Replay that told everything, and the number that was next then.
  std::vector<std::weak_ptr<const std::string>> everything_ ABSL_GUARDED_BY(mutex_);
  uint64_t everything_at_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_EVENTS_EVENT_FEED_H_
