// StoredObject and RestorePointEntry: the catalog's entries.
//
// Plain values, guarded by the store's mutex. Only ObjectTable and Catalog create entries and write
// to them, unless a field's comment says otherwise; pointers to entries are handles.
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
#include "cache_store/base/tenant_accounts.h"
#include "cache_store/base/tier.h"
#include "cache_store/catalog/fingerprint_book.h"
#include "cache_store/catalog/prefix_index.h"

namespace hearth {

// An absl::Time in half the memory, for millions of entries. Times before 1678 and after 2262
// become InfinitePast and InfiniteFuture; the longest time to live ends before 2262.
class PackedTime {
 public:
  PackedTime() = default;  // the Unix epoch, like absl::Time
  // Implicit, so that fields of this type work like an absl::Time.
  PackedTime(absl::Time time) : unix_ns_(absl::ToUnixNanos(time)) {}
  operator absl::Time() const {
    if (unix_ns_ == std::numeric_limits<int64_t>::max()) return absl::InfiniteFuture();
    if (unix_ns_ == std::numeric_limits<int64_t>::min()) return absl::InfinitePast();
    return absl::FromUnixNanos(unix_ns_);
  }

 private:
  int64_t unix_ns_ = 0;
};

// An object's slices in RAM, in layer order. A holder may read them without the lock.
using HostCopy = std::shared_ptr<const std::vector<SliceView>>;

struct StoredObject {
  static constexpr absl::Duration kLongestHidden = absl::Seconds(16);

  // State of the object's copy in one tier.
  struct Residency {
    bool read = false;   // read since it was written there
    bool begun = false;  // a write is running, or a failed write may have left a part
  };

  // `shared_layers` and `shared_publisher` outlive the object; `shared_publisher` may be null.
  StoredObject(uint64_t its_number, const Digest& its_key, const ObjectId& its_id,
               const std::vector<uint32_t>* shared_layers, absl::Span<const uint64_t> digests,
               uint64_t bytes_of_slice, const std::string* shared_publisher);
  // Allocates the object and its slices' digests in one block.
  static std::unique_ptr<StoredObject> Make(uint64_t number, const Digest& key, const ObjectId& id,
                                            const std::vector<uint32_t>* layers,
                                            absl::Span<const uint64_t> digests,
                                            uint64_t slice_bytes, const std::string* publisher);
  // CostBytes: RAM of an object's bookkeeping, with its place in the table. HostCopyCostBytes: RAM
  // of the bookkeeping of its RAM copy. Both without the KV (memory_cost.h).
  static uint64_t CostBytes(size_t slices);
  static uint64_t HostCopyCostBytes(size_t slices);

  // Constant: sessions that hold a reference read these fields without the lock.
  const uint64_t number;
  const uint64_t slice_bytes;
  const ObjectId id;
  // StoredSlice::in_table once the object is on disk; the writer sets it before the write.
  std::atomic<bool> in_table{false};

  bool on_disk = false;
  bool retired = false;  // quarantined, or dropped during a read: never visible again
  // Callers that read or copy the object also change these, under the store's mutex.
  Residency ram, disk;
  bool copying = false;  // a copy to the device is queued
  uint8_t failures = 0;  // consecutive failed reads with the same result
  uint8_t fetches = 0;   // fetches since the last copy to the device, at most 255
  // 16 bits of a digest of the last failed read's bytes; 0: the read returned an error
  uint16_t wrong = 0;
  uint32_t names = 0;  // restore points that name the object
  uint32_t pins = 0;   // pinned restore points that name the object
  uint32_t sessions = 0;
  uint32_t promised = 0;        // running publishes whose restore points will name the object
  SegmentNode* node = nullptr;  // null until the object is visible
  HostCopy host;                // null: not in RAM
  PackedTime hidden_until = absl::InfinitePast();  // after the last failure
  // Neighbours in the list of spare copies, if the object has a spare copy.
  StoredObject* spare_before = nullptr;
  StoredObject* spare_after = nullptr;
  TenantAccount* account = nullptr;  // set while the object is named or promised
  // The latest expiry of any restore point that named the object.
  PackedTime keep_until = absl::InfinitePast();

  // REQUIRES: the lock. A visible object's key is in its node.
  const Digest& key() const { return node != nullptr ? node->key : *own_key_; }
  // TakeKeyOf: called when the object becomes visible. KeepOwnKey: called when it stops being
  // visible.
  void TakeKeyOf(SegmentNode* its_node);
  void KeepOwnKey();
  const std::vector<uint32_t>& layers() const { return *layers_; }  // model layer of each slice
  absl::Span<const uint64_t> slice_digests() const { return {digests(), layers_->size()}; }
  // Null: the object was on disk when the store opened, or its publisher has no name.
  const std::string* publisher() const { return publisher_; }

  bool in_host() const { return host != nullptr; }
  // The object has a RAM copy and a disk copy: dropping the RAM copy loses no data.
  bool has_spare() const { return in_host() && on_disk; }
  // A read failed recently. Ends after kLongestHidden even if the clock is set back.
  bool hidden(absl::Time now) const {
    return !in_host() && now < hidden_until && hidden_until <= now + kLongestHidden;
  }
  uint64_t bytes() const { return slice_bytes * layers_->size(); }
  uint64_t disk_cost_bytes() const;
  // Returns whether the bytes match the slice's length and digest.
  bool IsIntact(size_t slice, const SliceView& view) const;
  // Returns whether all slices match. A null copy does not.
  bool IsIntact(const HostCopy& slices) const;
  // Appends the writes of the slices to another tier.
  void AddWrites(const HostCopy& slices, std::vector<SliceWrite>* writes) const;
  StoredSlice Slice(size_t i) const {
    return StoredSlice{number, layers()[i], slice_bytes, slice_digests()[i], in_table.load()};
  }

  static void operator delete(void* memory) { ::operator delete(memory); }

 private:
  struct Room {
    size_t slices;  // number of digests stored after the object
  };
  static void* operator new(size_t size, Room room) {
    return ::operator new(size + room.slices * sizeof(uint64_t));
  }
  static void operator delete(void* memory, Room) { ::operator delete(memory); }
  const uint64_t* digests() const { return reinterpret_cast<const uint64_t*>(this + 1); }

  const std::vector<uint32_t>* const layers_;
  const std::string* const publisher_;
  std::unique_ptr<const Digest> own_key_;  // null while the object has a node
};

struct RestorePointEntry {
  struct Uses {
    uint64_t tick = 0;  // order of the last use
    PackedTime last;
    PackedTime last_through;  // last use of this point or of a longer point that continues it
    PackedTime noted;         // last use noted on disk; see UseLog
    uint64_t hits = 0;
  };
  struct Expiry {
    PackedTime at;                              // not served from this time on, unless pinned
    PackedTime written = absl::InfinitePast();  // the value of `at` on disk, if not inherited
    uint32_t renewals = 0;                      // running publishes that will renew the point
    bool inherited = true;  // no publish named the point: it expires with its objects
  };

  struct Hint {  // from the publisher
    PackedTime kept_until =
        absl::InfinitePast();  // until then evicted after the tenant's other points
    int32_t priority = 0;
  };

  uint64_t number = 0;
  uint64_t manifest = 0;  // number of the manifest on disk; changes after a failed write
  TenantAccount* account = nullptr;
  const KnownFingerprint* model = nullptr;  // owned by the catalog
  SegmentNode* node = nullptr;
  absl::InlinedVector<StoredObject*, 2> objects;
  std::unique_ptr<const std::vector<uint32_t>> own_cuts;  // null: none
  bool durable = false;                                   // the manifest is on disk
  bool pinned = false;
  bool listed = false;  // the retention policy holds the point
  uint32_t sessions = 0;
  Uses uses;
  Expiry expiry;
  Hint hint;
  uint64_t manifest_cost_bytes = 0;
  uint64_t object_bytes = 0;  // bytes of all named objects

  // RAM of a restore point without its nodes and objects (memory_cost.h).
  static uint64_t CostBytes(size_t objects, size_t cuts);
  uint64_t cost_bytes() const { return CostBytes(objects.size(), cuts().size()); }
  const Digest& id() const { return node->key; }  // key of the last segment
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
