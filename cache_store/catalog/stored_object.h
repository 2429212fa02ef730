// StoredObject and RestorePointEntry: the catalog's entries.
//
// Plain values, guarded by the store's mutex. ObjectTable and Catalog make them, and alone write to
// them but where a field says more; pointers to them are handles.
#ifndef HEARTH_CACHE_STORE_CATALOG_STORED_OBJECT_H_
#define HEARTH_CACHE_STORE_CATALOG_STORED_OBJECT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cache_store/base/slice_view.h"
#include "cache_store/base/tenant_ledger.h"
#include "cache_store/base/tier.h"
#include "cache_store/catalog/fingerprint_book.h"
#include "cache_store/catalog/prefix_index.h"

namespace hearth {

// An object's slices in RAM, in order of its layers. Who has one may read it without the lock.
using HostCopy = std::shared_ptr<const std::vector<SliceView>>;

struct StoredObject {
  static constexpr absl::Duration kLongestHidden = absl::Seconds(16);

  // Of its copy in one tier.
  struct Residency {
    bool read = false;   // since it came there: whether writing it was of any use
    bool begun = false;  // it is on its way there, or a failed write may have left a part of it
  };

  // Never change once made: sessions that hold a reference read them without the lock.
  uint64_t number = 0;
  Digest key{};
  ObjectId id;
  std::vector<uint64_t> slice_digests;
  std::vector<uint32_t> layers;  // model layer of each slice
  uint64_t slice_bytes = 0;
  std::shared_ptr<const std::string> publisher;  // null: it was there when the store opened
  // As StoredSlice's, once it is on disk; set before it is written, by whoever writes it.
  std::atomic<bool> in_table{false};

  SegmentNode* node = nullptr;  // null until it is visible
  HostCopy host;                // null: it is not in RAM
  bool on_disk = false;
  bool retired = false;  // quarantined, or dropped while it is read: never visible again
  // Changed under the store's mutex by who reads or copies one, too.
  Residency ram, disk;
  bool copying = false;                            // a copy of it to the device is queued
  int failures = 0;                                // of reads from disk, in all
  absl::Time hidden_until = absl::InfinitePast();  // after the last one
  uint32_t fetches = 0;                            // since it was last copied to the device
  std::list<StoredObject*>::iterator spare;        // its place there, if it has a spare copy
  uint32_t names = 0;                              // restore points that name it
  uint32_t pins = 0;                               // pinned ones among them
  uint32_t sessions = 0;
  uint32_t promised = 0;             // publishes under way whose restore points will name it
  TenantAccount* account = nullptr;  // set while it is named or promised
  // The latest end that a restore point naming it ever had.
  absl::Time keep_until = absl::InfinitePast();

  bool in_host() const { return host != nullptr; }
  // A copy in RAM of what the disk has, too: dropping it loses nothing.
  bool has_spare() const { return in_host() && on_disk; }
  // A read of it failed a moment ago. Not for long, whatever becomes of the clock.
  bool hidden(absl::Time now) const {
    return !in_host() && now < hidden_until && hidden_until <= now + kLongestHidden;
  }
  uint64_t bytes() const { return slice_bytes * slice_digests.size(); }
  uint64_t disk_cost_bytes() const;
  // These are the bytes of the slice, by length and digest.
  bool IsIntact(size_t slice, const SliceView& view) const;
  // The same of all of its slices. False: null.
  bool IsIntact(const HostCopy& slices) const;
  // As they are written to another tier.
  void AddWrites(const HostCopy& slices, std::vector<SliceWrite>* writes) const;
  StoredSlice Slice(size_t i) const {
    return StoredSlice{number, layers[i], slice_bytes, slice_digests[i], in_table.load()};
  }
};

struct RestorePointEntry {
  struct Uses {
    uint64_t tick = 0;  // the last one, in order of use
    absl::Time last;
    absl::Time last_through;  // the same, uses of longer ones that go through it among them
    absl::Time noted;         // what the disk knows of it; see UseLog
    uint64_t hits = 0;
  };
  struct Expiry {
    absl::Time at;          // not served from then on, unless it is pinned
    bool inherited = true;  // nobody published it as a whole: it expires with its parts
    absl::Time written = absl::InfinitePast();  // what the disk holds of `at`, if not inherited
    uint32_t renewals = 0;                      // publishes under way that will renew it
  };

  struct Hint {  // of who published it
    int priority = 0;
    absl::Time kept_until = absl::InfinitePast();  // given up after the tenant's others until then
  };

  uint64_t number = 0;
  uint64_t manifest = 0;  // its number on disk; another after a failed write
  Digest id{};            // key of its last segment
  std::string tenant;
  TenantAccount* account = nullptr;
  std::shared_ptr<const KnownFingerprint> model;
  SegmentNode* node = nullptr;
  std::vector<StoredObject*> objects;
  std::vector<uint32_t> cuts;
  bool durable = false;  // its manifest is on disk
  bool pinned = false;
  bool listed = false;  // the retention policy knows of it
  uint32_t sessions = 0;
  Uses uses;
  Expiry expiry;
  Hint hint;
  uint64_t manifest_cost_bytes = 0;
  uint64_t object_bytes = 0;  // of all it names

  uint32_t tokens() const { return node->end(); }
  uint64_t bytes() const { return object_bytes; }
  Tier slowest_tier() const;
};

// Disk bytes of a restore point's manifest, rounded up.
uint64_t ManifestCostBytes(uint32_t tokens, size_t tenant_bytes,
                           const std::vector<StoredObject*>& objects);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_STORED_OBJECT_H_
