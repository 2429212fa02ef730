// StoredObject and RestorePointEntry: the catalog's entries.
//
// Plain values, guarded by the store's mutex. ObjectTable and Catalog make them, and alone write to
// them but where a field says more; pointers to them are handles.
#ifndef HEARTH_CACHE_STORE_CATALOG_STORED_OBJECT_H_
#define HEARTH_CACHE_STORE_CATALOG_STORED_OBJECT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache_store/base/slice_view.h"
#include "cache_store/base/tenant_ledger.h"
#include "cache_store/base/tier.h"
#include "cache_store/catalog/fingerprint_book.h"
#include "cache_store/catalog/prefix_index.h"

namespace hearth {

// An absl::Time in half of its memory, for entries of which there are millions. Times before 1678
// and after 2262 become InfinitePast and InfiniteFuture: the longest time to live ends earlier.
class PackedTime {
 public:
  PackedTime() = default;  // the Unix epoch, as absl::Time
  // Implicit: fields of this type are used as an absl::Time.
  PackedTime(absl::Time time) : unix_ns_(absl::ToUnixNanos(time)) {}
  operator absl::Time() const {
    if (unix_ns_ == std::numeric_limits<int64_t>::max()) return absl::InfiniteFuture();
    if (unix_ns_ == std::numeric_limits<int64_t>::min()) return absl::InfinitePast();
    return absl::FromUnixNanos(unix_ns_);
  }

 private:
  int64_t unix_ns_ = 0;
};

// An object's slices in RAM, in order of its layers. Who has one may read it without the lock.
using HostCopy = std::shared_ptr<const std::vector<SliceView>>;

struct StoredObject {
  static constexpr absl::Duration kLongestHidden = absl::Seconds(16);

  // Of its copy in one tier.
  struct Residency {
    bool read = false;   // since it came there: whether writing it was of any use
    bool begun = false;  // it is on its way there, or a failed write may have left a part of it
  };

  // `shared`: values that outlive it; `publisher` may be null.
  StoredObject(uint64_t its_number, const Digest& its_key, const ObjectId& its_id,
               const std::vector<uint32_t>* shared_layers, absl::Span<const uint64_t> digests,
               uint64_t bytes_of_slice, const std::string* shared_publisher);
  // One block with its slices' digests.
  static std::unique_ptr<StoredObject> Make(uint64_t number, const Digest& key, const ObjectId& id,
                                            const std::vector<uint32_t>* layers,
                                            absl::Span<const uint64_t> digests,
                                            uint64_t slice_bytes, const std::string* publisher);
  // RAM of an object's bookkeeping, with its place in the table, and of the bookkeeping of its copy
  // in RAM. Without the KV (memory_cost.h).
  static uint64_t CostBytes(size_t slices);
  static uint64_t HostCopyCostBytes(size_t slices);

  // Never change once made: sessions that hold a reference read them without the lock.
  const uint64_t number;
  const uint64_t slice_bytes;
  const ObjectId id;
  // As StoredSlice's, once it is on disk; set before it is written, by whoever writes it.
  std::atomic<bool> in_table{false};

  bool on_disk = false;
  bool retired = false;  // quarantined, or dropped while it is read: never visible again
  // Changed under the store's mutex by who reads or copies one, too.
  Residency ram, disk;
  bool copying = false;  // a copy of it to the device is queued
  uint8_t failures = 0;  // failed reads in a row with the same result
  uint8_t fetches = 0;   // since it was last copied to the device, 255 at most
  // 16 bits of a digest of the last failed read's bytes; 0: it was an error
  uint16_t wrong = 0;
  uint32_t names = 0;  // restore points that name it
  uint32_t pins = 0;   // pinned ones among them
  uint32_t sessions = 0;
  uint32_t promised = 0;        // publishes under way whose restore points will name it
  SegmentNode* node = nullptr;  // null until it is visible
  HostCopy host;                // null: it is not in RAM
  PackedTime hidden_until = absl::InfinitePast();  // after the last failure
  // Its neighbours among the spare copies, if it has one.
  StoredObject* spare_before = nullptr;
  StoredObject* spare_after = nullptr;
  TenantAccount* account = nullptr;  // set while it is named or promised
  // The latest end that a restore point naming it ever had.
  PackedTime keep_until = absl::InfinitePast();

  // REQUIRES: the lock. Its node has it, if it is visible.
  const Digest& key() const { return node != nullptr ? node->key : *own_key_; }
  // Called when it becomes visible, with its node, and when it stops being so.
  void TakeKeyOf(SegmentNode* its_node);
  void KeepOwnKey();
  const std::vector<uint32_t>& layers() const { return *layers_; }  // model layer of each slice
  absl::Span<const uint64_t> slice_digests() const { return {digests(), layers_->size()}; }
  // Null: it was there when the store opened, or its publisher has no name.
  const std::string* publisher() const { return publisher_; }

  bool in_host() const { return host != nullptr; }
  // A copy in RAM of what the disk has, too: dropping it loses nothing.
  bool has_spare() const { return in_host() && on_disk; }
  // A read of it failed a moment ago. Not for long, whatever becomes of the clock.
  bool hidden(absl::Time now) const {
    return !in_host() && now < hidden_until && hidden_until <= now + kLongestHidden;
  }
  uint64_t bytes() const { return slice_bytes * layers_->size(); }
  uint64_t disk_cost_bytes() const;
  // These are the bytes of the slice, by length and digest.
  bool IsIntact(size_t slice, const SliceView& view) const;
  // The same of all of its slices. False: null.
  bool IsIntact(const HostCopy& slices) const;
  // As they are written to another tier.
  void AddWrites(const HostCopy& slices, std::vector<SliceWrite>* writes) const;
  StoredSlice Slice(size_t i) const {
    return StoredSlice{number, layers()[i], slice_bytes, slice_digests()[i], in_table.load()};
  }

  static void operator delete(void* memory) { ::operator delete(memory); }

 private:
  struct Room {
    size_t slices;  // digests after the object
  };
  static void* operator new(size_t size, Room room) {
    return ::operator new(size + room.slices * sizeof(uint64_t));
  }
  static void operator delete(void* memory, Room) { ::operator delete(memory); }
  const uint64_t* digests() const { return reinterpret_cast<const uint64_t*>(this + 1); }

  const std::vector<uint32_t>* const layers_;
  const std::string* const publisher_;
  std::unique_ptr<const Digest> own_key_;  // while it has no node
};

struct RestorePointEntry {
  struct Uses {
    uint64_t tick = 0;  // the last one, in order of use
    PackedTime last;
    PackedTime last_through;  // the same, uses of longer ones that go through it among them
    PackedTime noted;         // what the disk knows of it; see UseLog
    uint64_t hits = 0;
  };
  struct Expiry {
    PackedTime at;                              // not served from then on, unless it is pinned
    PackedTime written = absl::InfinitePast();  // what the disk holds of `at`, if not inherited
    uint32_t renewals = 0;                      // publishes under way that will renew it
    bool inherited = true;  // nobody published it as a whole: it expires with its parts
  };

  struct Hint {                                    // of who published it
    PackedTime kept_until = absl::InfinitePast();  // given up after the tenant's others until then
    int32_t priority = 0;
  };

  uint64_t number = 0;
  uint64_t manifest = 0;  // its number on disk; another after a failed write
  TenantAccount* account = nullptr;
  const KnownFingerprint* model = nullptr;  // the catalog holds it
  SegmentNode* node = nullptr;
  absl::InlinedVector<StoredObject*, 2> objects;
  std::unique_ptr<const std::vector<uint32_t>> own_cuts;  // null: none
  bool durable = false;                                   // its manifest is on disk
  bool pinned = false;
  bool listed = false;  // the retention policy knows of it
  uint32_t sessions = 0;
  Uses uses;
  Expiry expiry;
  Hint hint;
  uint64_t manifest_cost_bytes = 0;
  uint64_t object_bytes = 0;  // of all it names

  // RAM of a restore point without its nodes and objects (memory_cost.h).
  static uint64_t CostBytes(size_t objects, size_t cuts);
  uint64_t cost_bytes() const { return CostBytes(objects.size(), cuts().size()); }
  const Digest& id() const { return node->key; }  // the key of its last segment
  absl::Span<const uint32_t> cuts() const {
    return own_cuts == nullptr ? absl::Span<const uint32_t>() : absl::MakeConstSpan(*own_cuts);
  }
  const std::string& tenant() const { return account->tenant; }
  uint32_t tokens() const { return node->end(); }
  uint64_t bytes() const { return object_bytes; }
  Tier slowest_tier() const;
};

// Disk bytes of a restore point's manifest, rounded up.
uint64_t ManifestCostBytes(uint32_t tokens, size_t tenant_bytes,
                           absl::Span<StoredObject* const> objects);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_STORED_OBJECT_H_
