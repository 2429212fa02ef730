// StoredObject and RestorePointEntry: what the catalog holds, as it keeps it.
//
// Plain values, guarded by the store's mutex.
#ifndef HEARTH_CACHE_STORE_CATALOG_STORED_OBJECT_H_
#define HEARTH_CACHE_STORE_CATALOG_STORED_OBJECT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cache_store/base/tenant_ledger.h"
#include "cache_store/base/tier.h"
#include "cache_store/catalog/fingerprint_book.h"
#include "cache_store/catalog/prefix_index.h"

namespace hearth {

struct StoredObject {
  // Never change once made: sessions that hold a reference read them without the lock.
  uint64_t number = 0;
  Digest key{};
  ObjectId id;
  std::vector<uint64_t> slice_digests;
  std::vector<uint32_t> layers;  // model layer of each slice
  uint64_t slice_bytes = 0;
  std::shared_ptr<const std::string> publisher;  // null: it was there when the store opened

  uint64_t compressed_bytes = 0;  // of its slices on disk, where some are compressed; else 0
  SegmentNode* node = nullptr;    // null until it is visible
  bool in_host = false;
  bool on_disk = false;
  bool begun_on_disk = false;  // a write of it failed and may have left something
  bool retired = false;        // quarantined: never visible again
  uint32_t restore_points = 0;
  uint32_t host_restore_points = 0;       // of these, counted as resident in RAM
  uintptr_t points = 0, host_points = 0;  // their addresses, combined by xor
  uint32_t pins = 0;                      // pinned restore points among them
  uint32_t sessions = 0;
  uint32_t promised = 0;             // publishes under way whose restore points will name it
  TenantAccount* account = nullptr;  // set while it is named or promised
  uint32_t fetches = 0;              // since it was last copied to the device
  bool device_queued = false;        // to be copied there
  bool promoting = false;            // a reader keeps its slices for RAM
  uint32_t read_failures = 0;        // errors of the disk, other than wrong bytes
  // Until when a publisher wanted it: the latest end that a restore point naming it ever had.
  absl::Time keep_until = absl::InfinitePast();
  // Since its copy came to the tier: whether writing it there was of any use.
  bool read_in_host = false;
  bool read_on_disk = false;

  uint64_t bytes() const { return slice_bytes * slice_digests.size(); }
  uint64_t stored_bytes() const { return compressed_bytes > 0 ? compressed_bytes : bytes(); }
  uint64_t disk_cost_bytes() const;
  StoredSlice Slice(size_t i) const {
    return StoredSlice{number, layers[i], slice_bytes, slice_digests[i]};
  }
};

struct RestorePointEntry {
  uint64_t number = 0;
  uint64_t manifest = 0;  // its number on disk; another after a failed write
  Digest id{};            // key of its last segment
  std::string tenant;
  TenantAccount* account = nullptr;
  std::shared_ptr<const KnownFingerprint> model;
  SegmentNode* node = nullptr;
  std::vector<StoredObject*> objects;
  std::vector<uint32_t> cuts;
  bool in_host = false;  // the RAM copies of its objects are kept for it; some may be on disk only
  bool durable = false;  // its manifest is on disk
  bool pinned = false;
  uint32_t sessions = 0;   // changed by HoldPoint and ReleasePoint only
  uint32_t sole = 0;       // objects that only this point names: what going would free
  uint32_t host_sole = 0;  // objects that of the resident points only this one names
  uint64_t tick = 0;       // last use, in order of use
  bool listed = false;     // the retention policy knows of it
  absl::Time last_use;
  absl::Time last_touch;  // the same, uses of longer ones that go through it among them
  absl::Time noted;       // what the disk knows of it; see TakeUses
  absl::Time expires;     // not served from then on, unless it is pinned
  bool inherited = true;  // nobody published it as a whole: it expires with its parts
  uint32_t renewals = 0;  // publishes under way that will renew it
  uint64_t hits = 0;
  uint64_t manifest_cost_bytes = 0;

  uint32_t tokens() const { return node->end(); }
  uint64_t bytes() const;
  Tier slowest_tier() const;
};

// Disk bytes of a restore point's manifest, rounded up.
uint64_t ManifestCostBytes(uint32_t tokens, size_t tenant_bytes,
                           const std::vector<StoredObject*>& objects);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_STORED_OBJECT_H_
