// StoredObject and RestorePointEntry: the catalog's entries.
//
// Plain data, guarded by the store's mutex. Only ObjectTable and Catalog create and change entries,
// unless a field's comment says otherwise. Others use pointers to entries as handles.
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

// A time in half the memory of an absl::Time, because there may be millions of entries. Times
// before 1678 and after 2262 become InfinitePast and InfiniteFuture; every allowed time to live
// ends before 2262.
class PackedTime {
 public:
  PackedTime() = default;  // the Unix epoch, as for absl::Time
  // Implicit conversion, so that code can use this type like an absl::Time.
  PackedTime(absl::Time time) : unix_ns_(absl::ToUnixNanos(time)) {}
  operator absl::Time() const {
    if (unix_ns_ == std::numeric_limits<int64_t>::max()) return absl::InfiniteFuture();
    if (unix_ns_ == std::numeric_limits<int64_t>::min()) return absl::InfinitePast();
    return absl::FromUnixNanos(unix_ns_);
  }

 private:
  int64_t unix_ns_ = 0;
};

// An object's slices in RAM, in layer order. An owner of this pointer may read the slices without
// the store's lock.
using HostCopy = std::shared_ptr<const std::vector<SliceView>>;

struct StoredObject {
  static constexpr absl::Duration kLongestHidden = absl::Seconds(16);

  // State of an object's copy in one tier.
  struct Residency {
    bool read = false;  // whether the copy was read since it was written
    bool begun =
        false;  // whether a write is running, or failed and may have left a part of the object
  };

  // `shared_layers` and `shared_publisher` must outlive the object; `shared_publisher` may be null.
  StoredObject(uint64_t its_number, const Digest& its_key, const ObjectId& its_id,
               const std::vector<uint32_t>* shared_layers, absl::Span<const uint64_t> digests,
               uint64_t bytes_of_slice, const std::string* shared_publisher);
  // Allocates the object and the digests of its slices in one memory block.
  static std::unique_ptr<StoredObject> Make(uint64_t number, const Digest& key, const ObjectId& id,
                                            const std::vector<uint32_t>* layers,
                                            absl::Span<const uint64_t> digests,
                                            uint64_t slice_bytes, const std::string* publisher);
  // CostBytes: RAM of an object's bookkeeping, with its slot in the table. HostCopyCostBytes: RAM
  // of the bookkeeping of the object's RAM copy. Both exclude the KV bytes (memory_cost.h).
  static uint64_t CostBytes(size_t slices);
  static uint64_t HostCopyCostBytes(size_t slices);

  // The following fields are constant: sessions with a reference to the object read them without
  // the lock.
  const uint64_t number;
  const uint64_t slice_bytes;
  const ObjectId id;
  // Value of StoredSlice::in_table for this object; the writer sets it before it writes the object
  // to disk.
  std::atomic<bool> in_table{false};

  bool on_disk = false;
  // quarantined, or dropped while a session read it: hidden from lookups permanently
  bool retired = false;
  // The following fields are also changed by code outside ObjectTable that reads or copies the
  // object, under the store's mutex.
  Residency ram, disk;
  bool copying = false;  // whether a copy to the gpu tier is queued
  uint8_t failures = 0;  // number of consecutive failed reads with the same result
  uint8_t fetches = 0;   // number of fetches since the last copy to the gpu tier, at most 255
  // 16 bits of the digest of the bytes of the last failed read; 0: the read returned an error.
  uint16_t wrong = 0;
  uint32_t names = 0;  // number of restore points that use the object
  uint32_t pins = 0;   // number of pinned restore points that use the object
  uint32_t sessions = 0;
  uint32_t promised = 0;  // number of running publishes whose restore points will use the object
  SegmentNode* node = nullptr;  // the segment's node; null while the object is invisible
  HostCopy host;                // slices in RAM; null: not in RAM
  PackedTime hidden_until = absl::InfinitePast();  // not read before this time, after a failed read
  // Neighbours in the list of RAM copies whose objects are also on disk; null if the object is not
  // in the list.
  StoredObject* spare_before = nullptr;
  StoredObject* spare_after = nullptr;
  // set while a restore point or a running publish uses the object
  TenantAccount* account = nullptr;
  // The latest expiry of all restore points that have used the object.
  PackedTime keep_until = absl::InfinitePast();

  // Returns the object's key. REQUIRES: the store's lock. If the object is visible, its node has
  // the key.
  const Digest& key() const { return node != nullptr ? node->key : *own_key_; }
  // TakeKeyOf: frees the object's own key when it gets a node. KeepOwnKey: copies the node's key
  // when the object loses its node.
  void TakeKeyOf(SegmentNode* its_node);
  void KeepOwnKey();
  // index of the model layer of each slice
  const std::vector<uint32_t>& layers() const { return *layers_; }
  absl::Span<const uint64_t> slice_digests() const { return {digests(), layers_->size()}; }
  // Returns the name of the publisher. Null: the object was stored before the store opened, or its
  // publisher has no name.
  const std::string* publisher() const { return publisher_; }

  bool in_host() const { return host != nullptr; }
  // Returns whether the object is in RAM and on disk, so that dropping the RAM copy loses no data.
  bool has_spare() const { return in_host() && on_disk; }
  // Returns whether the object is hidden because a read failed recently. This ends after
  // kLongestHidden, even if the clock is set back.
  bool hidden(absl::Time now) const {
    return !in_host() && now < hidden_until && hidden_until <= now + kLongestHidden;
  }
  uint64_t bytes() const { return slice_bytes * layers_->size(); }
  uint64_t disk_cost_bytes() const;
  // Returns whether the bytes have the length and digest of the slice.
  bool IsIntact(size_t slice, const SliceView& view) const;
  // Returns whether all slices have the right length and digest; false for a null pointer.
  bool IsIntact(const HostCopy& slices) const;
  // Appends a write of each slice to `*writes`, to copy the object to another tier.
  void AddWrites(const HostCopy& slices, std::vector<SliceWrite>* writes) const;
  StoredSlice Slice(size_t i) const {
    return StoredSlice{number, layers()[i], slice_bytes, slice_digests()[i], in_table.load()};
  }

  static void operator delete(void* memory) { ::operator delete(memory); }

 private:
  struct Room {
    size_t slices;  // number of slice digests stored behind the object
  };
  static void* operator new(size_t size, Room room) {
    return ::operator new(size + room.slices * sizeof(uint64_t));
  }
  static void operator delete(void* memory, Room) { ::operator delete(memory); }
  const uint64_t* digests() const { return reinterpret_cast<const uint64_t*>(this + 1); }

  const std::vector<uint32_t>* const layers_;
  const std::string* const publisher_;
  std::unique_ptr<const Digest> own_key_;  // the object's key; null while the object has a node
};

struct RestorePointEntry {
  struct Uses {
    uint64_t tick = 0;  // number that orders points by their last use
    PackedTime last;
    // last use of this point, or of a longer point of which it is a prefix
    PackedTime last_through;
    PackedTime noted;  // last use that is recorded on disk
    uint64_t hits = 0;
  };
  struct Expiry {
    PackedTime at;  // expiry: not served from this time on, unless pinned
    // the value of `at` in the manifest on disk; not set if inherited
    PackedTime written = absl::InfinitePast();
    uint32_t renewals = 0;  // number of running publishes that will renew the point
    bool inherited = true;  // true: no publish requested the point, so it expires with its objects
  };

  struct Hint {  // eviction hint that the publisher gave
    PackedTime kept_until =
        absl::InfinitePast();  // until this time, evicted after the tenant's other points
    int32_t priority = 0;
  };

  uint64_t number = 0;
  uint64_t manifest = 0;  // number of the point's manifest on disk; a failed write changes it
  TenantAccount* account = nullptr;
  const KnownFingerprint* model = nullptr;  // owned by the catalog
  SegmentNode* node = nullptr;
  absl::InlinedVector<StoredObject*, 2> objects;
  // prefill cuts of the prompt; null: no cuts
  std::unique_ptr<const std::vector<uint32_t>> own_cuts;
  bool durable = false;  // whether the manifest is on disk
  bool pinned = false;
  bool listed = false;  // whether the eviction policy has the point
  uint32_t sessions = 0;
  Uses uses;
  Expiry expiry;
  Hint hint;
  uint64_t manifest_cost_bytes = 0;
  uint64_t object_bytes = 0;  // total bytes of the objects that the restore point uses

  // Returns the RAM of a restore point's bookkeeping, without its nodes and objects
  // (memory_cost.h).
  static uint64_t CostBytes(size_t objects, size_t cuts);
  uint64_t cost_bytes() const { return CostBytes(objects.size(), cuts().size()); }
  const Digest& id() const { return node->key; }  // the id is the key of the last segment
  absl::Span<const uint32_t> cuts() const {
    return own_cuts == nullptr ? absl::Span<const uint32_t>() : absl::MakeConstSpan(*own_cuts);
  }
  const std::string& tenant() const { return account->tenant; }
  uint32_t tokens() const { return node->end(); }
  uint64_t bytes() const { return object_bytes; }
  Tier slowest_tier() const;
};

// Returns the disk bytes of a restore point's manifest, rounded up.
uint64_t ManifestCostBytes(uint32_t tokens, size_t tenant_bytes,
                           absl::Span<StoredObject* const> objects);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_STORED_OBJECT_H_
