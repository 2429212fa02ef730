// RestorePoint: a restore point as the store lists it; with the results of removing some, and the
// events that report changes.
//
// Plain values.
#ifndef HEARTH_CACHE_STORE_STORE_RESTORE_POINT_H_
#define HEARTH_CACHE_STORE_STORE_RESTORE_POINT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache_store/base/removal.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"

namespace hearth {

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

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_RESTORE_POINT_H_
