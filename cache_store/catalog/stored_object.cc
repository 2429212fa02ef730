#include "cache_store/catalog/stored_object.h"

#include <algorithm>
#include <cassert>

#include "cache_store/base/memory_cost.h"
#include "cache_store/retention/retention.h"

namespace hearth {
namespace {

// Disk bytes of a slice or record in addition to its payload. A slice: 12 bytes of key, 8 of
// sequence number, about 40 of its block and index entry, rounded up. A record: fixed fields, tag
// and checksum, rounded up.
constexpr uint64_t kSliceOverheadBytes = 128;
constexpr uint64_t kRecordOverheadBytes = 256;

// RAM of a slice's shared_ptr control block and padding.
constexpr uint64_t kHostSliceCostBytes = 48;

}  // namespace

StoredObject::StoredObject(uint64_t its_number, const Digest& its_key, const ObjectId& its_id,
                           const std::vector<uint32_t>* shared_layers,
                           absl::Span<const uint64_t> digests, uint64_t bytes_of_slice,
                           const std::string* shared_publisher)
    : number(its_number),
      slice_bytes(bytes_of_slice),
      id(its_id),
      layers_(shared_layers),
      publisher_(shared_publisher),
      own_key_(std::make_unique<const Digest>(its_key)) {
  assert(digests.size() == layers_->size());
  std::copy(digests.begin(), digests.end(), const_cast<uint64_t*>(this->digests()));
}

std::unique_ptr<StoredObject> StoredObject::Make(
    uint64_t number, const Digest& key, const ObjectId& id, const std::vector<uint32_t>* layers,
    absl::Span<const uint64_t> digests, uint64_t slice_bytes, const std::string* publisher) {
  static_assert(alignof(StoredObject) >= alignof(uint64_t) && sizeof(StoredObject) % 8 == 0, "");
  return std::unique_ptr<StoredObject>(new (Room{digests.size()}) StoredObject(
      number, key, id, layers, digests, slice_bytes, publisher));
}

uint64_t StoredObject::CostBytes(size_t slices) {
  return BlockBytes(sizeof(StoredObject) + slices * sizeof(uint64_t)) + SlotBytes(sizeof(void*));
}

// The cost of a shared list of views, and of each slice's memory.
uint64_t StoredObject::HostCopyCostBytes(size_t slices) {
  return BlockBytes(16 + sizeof(std::vector<SliceView>)) + BlockBytes(slices * sizeof(SliceView)) +
         slices * kHostSliceCostBytes;
}

void StoredObject::TakeKeyOf(SegmentNode* its_node) {
  assert(node == nullptr && its_node->key == *own_key_);
  node = its_node;
  own_key_ = nullptr;
}

void StoredObject::KeepOwnKey() {
  own_key_ = std::make_unique<const Digest>(node->key);
  node = nullptr;
}

uint64_t StoredObject::disk_cost_bytes() const {
  return bytes() + kRecordOverheadBytes + layers_->size() * (kSliceOverheadBytes + 8);
}

bool StoredObject::IsIntact(size_t slice, const SliceView& view) const {
  return view.bytes.size() == slice_bytes &&
         SliceDigest(view.bytes.data(), view.bytes.size()) == slice_digests()[slice];
}

bool StoredObject::IsIntact(const HostCopy& slices) const {
  if (slices == nullptr) return false;
  for (size_t i = 0; i < slices->size(); ++i) {
    if (!IsIntact(i, (*slices)[i])) return false;
  }
  return true;
}

void StoredObject::AddWrites(const HostCopy& slices, std::vector<SliceWrite>* writes) const {
  for (size_t i = 0; i < slices->size(); ++i) writes->push_back({Slice(i), (*slices)[i]});
}

uint64_t ManifestCostBytes(uint32_t tokens, size_t tenant_bytes,
                           absl::Span<StoredObject* const> objects) {
  // 8 bytes a token: 4 for the token id and, in the worst case, 4 for a cut. Then for each object
  // its id, number and digests.
  uint64_t sum = kRecordOverheadBytes + tenant_bytes + 8 * uint64_t{tokens};
  for (StoredObject* object : objects) sum += 32 + 8 * object->layers().size();
  return sum;
}

// The sum of: the entry, its slot in its tenant's set, and the eviction policy's unit.
uint64_t RestorePointEntry::CostBytes(size_t objects, size_t cuts) {
  uint64_t bytes =
      BlockBytes(sizeof(RestorePointEntry)) + SlotBytes(sizeof(void*)) + Retention::kUnitCostBytes;
  if (objects > 2) bytes += BlockBytes(objects * sizeof(void*));
  if (cuts > 0) bytes += BlockBytes(sizeof(std::vector<uint32_t>)) + BlockBytes(cuts * 4);
  return bytes;
}

Tier RestorePointEntry::slowest_tier() const {
  for (StoredObject* object : objects) {
    if (!object->in_host()) return Tier::kDisk;
  }
  return Tier::kHost;
}

}  // namespace hearth
