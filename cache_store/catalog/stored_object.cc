#include "cache_store/catalog/stored_object.h"

namespace hearth {
namespace {

// The cost on disk of one entry beside its payload. A slice: 12 bytes of key, 8 of sequence, some
// 40 of its block and the block's place in the index, rounded up. A record: its fixed fields, tag
// and checksum, rounded up.
constexpr uint64_t kSliceOverheadBytes = 128;
constexpr uint64_t kRecordOverheadBytes = 256;

}  // namespace

uint64_t StoredObject::disk_cost_bytes() const {
  return bytes() + kRecordOverheadBytes + slice_digests.size() * (kSliceOverheadBytes + 8);
}

bool StoredObject::IsIntact(size_t slice, const SliceView& view) const {
  return view.bytes.size() == slice_bytes &&
         SliceDigest(view.bytes.data(), view.bytes.size()) == slice_digests[slice];
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
                           const std::vector<StoredObject*>& objects) {
  // Tokens and, at worst, as many cuts; of an object its id, number and digests.
  uint64_t sum = kRecordOverheadBytes + tenant_bytes + 8 * uint64_t{tokens};
  for (StoredObject* object : objects) sum += 32 + 8 * object->slice_digests.size();
  return sum;
}

Tier RestorePointEntry::slowest_tier() const {
  for (StoredObject* object : objects) {
    if (!object->in_host()) return Tier::kDisk;
  }
  return Tier::kHost;
}

}  // namespace hearth
