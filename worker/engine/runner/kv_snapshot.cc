#include "worker/engine/runner/kv_snapshot.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/restore_rule.h"
#include "worker/model/torch/kv_cache.h"

namespace hearth {

namespace {

// Vector loads and network messages need objects aligned to 64 bytes.
constexpr uintptr_t kObjectAlignment = 64;

absl::Status CheckObject(const KvLayout& layout, const KvObject& object) {
  const size_t expected = layout.ObjectBytes(object.id.tokens, object.id.group);
  if (object.size_bytes != expected) {
    return absl::DataLossError(absl::StrCat(ObjectName(object.id), " has ", object.size_bytes,
                                            " bytes, expected ", expected));
  }
  const size_t layers = layout.LayerCount(object.id.group);
  if (object.bytes == nullptr) {
    const bool remainder = object.id.tokens % layout.chunk_tokens != 0;
    if (object.device_bytes == nullptr || remainder) {
      return absl::DataLossError(absl::StrCat(ObjectName(object.id), " has no bytes"));
    }
  }
  if (reinterpret_cast<uintptr_t>(object.bytes.get()) % kObjectAlignment != 0) {
    return absl::DataLossError(absl::StrCat(ObjectName(object.id), " is not aligned"));
  }
  if (object.slice_digests.size() != layers) {
    return absl::DataLossError(absl::StrCat(ObjectName(object.id), " has ",
                                            object.slice_digests.size(), " digests, expected ",
                                            layers));
  }
  return absl::OkStatus();
}

}  // namespace

const std::byte* SliceOf(const KvObject& object, size_t index, size_t slice_bytes) {
  assert((index + 1) * slice_bytes <= object.size_bytes);
  if (object.device_bytes != nullptr) return object.device_bytes.get() + index * slice_bytes;
  return object.bytes.get() + index * slice_bytes;
}

absl::Status CheckAndSortObjects(const KvLayout& layout, uint32_t boundary, KvObjects* objects) {
  for (const auto& object : *objects) {
    if (object == nullptr) return absl::DataLossError("an object is null");
  }
  std::sort(objects->begin(), objects->end(),
            [](const auto& a, const auto& b) { return a->id < b->id; });
  std::vector<ObjectId> needed = NeededObjects(layout, boundary);
  std::sort(needed.begin(), needed.end());
  if (needed.size() != objects->size()) {
    return absl::DataLossError(absl::StrCat("boundary ", boundary, " needs ", needed.size(),
                                            " objects, got ", objects->size()));
  }
  for (size_t i = 0; i < needed.size(); ++i) {
    const KvObject& object = *(*objects)[i];
    if (!(object.id == needed[i])) {
      return absl::DataLossError(absl::StrCat("boundary ", boundary, " needs ",
                                              ObjectName(needed[i]), ", got ",
                                              ObjectName(object.id)));
    }
    if (absl::Status status = CheckObject(layout, object); !status.ok()) return status;
  }
  return absl::OkStatus();
}

void RestoreSnapshot(const KvLayout& layout, uint32_t boundary, const KvObjects& objects,
                     KvCache* kv) {
  assert(boundary <= static_cast<uint32_t>(kv->capacity()));
  kv->BeginRestore(static_cast<int>(boundary));
  for (const auto& object : objects) {
    const ObjectId& id = object->id;
    const size_t slice_bytes = layout.SliceBytes(id.tokens);
    const bool on_device = object->device_bytes != nullptr;
    size_t index = 0;
    for (uint32_t layer : layout.LayersOf(id.group)) {
      const std::byte* slice = SliceOf(*object, index++, slice_bytes);
      const int begin = std::max(static_cast<int>(id.begin), kv->first_held(layer));
      const int end = static_cast<int>(id.begin + id.tokens);
      assert(begin < end && end <= static_cast<int>(boundary));
      kv->CopyIn(layer, begin, end, id.begin, id.tokens, slice, on_device);
    }
  }
  kv->FinishRestore(static_cast<int>(boundary));
  assert(kv->length() == static_cast<int>(boundary));
}

bool MayBeKept(const KvObjects& objects) {
  return std::all_of(objects.begin(), objects.end(), [](const auto& object) {
    return object->bytes != nullptr && object->device_bytes == nullptr;
  });
}

absl::Status AwaitBytes(const KvObject& object) {
  if (object.Complete()) return absl::OkStatus();
  return absl::InternalError("device: a copy of saved KV from the device failed");
}

absl::Status CheckLent(const KvObjects& objects) {
  absl::Status status;
  for (const auto& object : objects) {
    if (object->check_device_bytes != nullptr) status.Update(object->check_device_bytes());
  }
  return status;
}

void ReturnLent(KvObjects* objects) {
  for (auto& object : *objects) {
    if (object->device_bytes == nullptr) continue;
    auto returned = std::make_shared<KvObject>(*object);
    returned->device_bytes = nullptr;
    returned->check_device_bytes = nullptr;
    object = std::move(returned);
  }
}

std::shared_ptr<KvObject> NewObject(const KvLayout& layout, const ObjectId& id) {
  auto object = std::make_shared<KvObject>();
  object->id = id;
  object->size_bytes = layout.ObjectBytes(id.tokens, id.group);
  object->bytes = AllocateAligned(object->size_bytes);
  return object;
}

void CopyRows(const KvLayout& layout, const SequenceKv& kv, uint32_t begin, uint32_t end,
              KvObject* object) {
  const ObjectId& id = object->id;
  const uint32_t first = std::max(begin, id.begin);
  const uint32_t last = std::min(end, id.begin + id.tokens);
  if (first >= last) return;
  const size_t slice_bytes = layout.SliceBytes(id.tokens);
  std::byte* slice = object->bytes.get();
  for (uint32_t layer : layout.LayersOf(id.group)) {
    assert(static_cast<int>(first) >= kv.first_held(layer));
    kv.CopyOut(layer, first, last, id.begin, id.tokens, slice);
    slice += slice_bytes;
  }
}

void CopyRows(const KvLayout& layout, const KvObject& from, KvObject* to) {
  assert(from.id.begin == to->id.begin && from.id.group == to->id.group);
  // In each object, the rows [token][head_dim] of one layer, of K or V, and of one KV head are
  // contiguous.
  const size_t row_bytes = layout.head_dim * KvDtypeBytes(layout.dtype);
  const size_t from_stride = from.id.tokens * row_bytes;
  const size_t to_stride = to->id.tokens * row_bytes;
  const size_t runs = layout.LayerCount(from.id.group) * 2 * layout.kv_heads;
  assert(runs * from_stride == from.size_bytes && runs * to_stride == to->size_bytes);
  for (size_t run = 0; run < runs; ++run) {
    std::memcpy(to->bytes.get() + run * to_stride, from.bytes.get() + run * from_stride,
                std::min(from_stride, to_stride));
  }
}

void SealObject(const KvLayout& layout, KvObject* object) {
  assert(object->slice_digests.empty());
  const size_t slice_bytes = layout.SliceBytes(object->id.tokens);
  for (size_t at = 0; at < object->size_bytes; at += slice_bytes) {
    object->slice_digests.push_back(SliceDigest(object->bytes.get() + at, slice_bytes));
  }
  assert(object->slice_digests.size() == layout.LayerCount(object->id.group));
}

absl::StatusOr<std::string> MakeSnapshotFile(const Fingerprint& fingerprint, const KvLayout& layout,
                                             std::vector<uint32_t> token_ids,
                                             const KvObjects& objects) {
  Manifest manifest;
  manifest.fingerprint = fingerprint.digest();
  manifest.token_count = manifest.next_position = static_cast<uint32_t>(token_ids.size());
  manifest.token_ids = std::move(token_ids);
  for (const auto& object : objects) {
    if (absl::Status complete = AwaitBytes(*object); !complete.ok()) return complete;
    manifest.objects.push_back({object->id, object->slice_digests});
  }
  absl::StatusOr<std::string> file = BuildSnapshotHeader(fingerprint, manifest);
  if (!file.ok()) return file.status();
  const absl::StatusOr<SnapshotHeader> header = ParseSnapshotHeader(*file);
  if (!header.ok()) return header.status();
  try {
    file->resize(header->file_bytes, '\0');
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the machine has no memory for a state of ", header->file_bytes, " bytes"));
  }
  size_t slice = 0;
  for (const auto& object : objects) {
    const size_t bytes = layout.SliceBytes(object->id.tokens);
    for (size_t i = 0; i < object->slice_digests.size(); ++i, ++slice) {
      std::memcpy(file->data() + header->slice_offsets[slice], SliceOf(*object, i, bytes), bytes);
    }
  }
  assert(slice == header->slice_offsets.size());
  return file;
}

KvObjects ObjectsOfSnapshot(const SnapshotHeader& header, absl::string_view file) {
  assert(file.size() == header.file_bytes);
  KvObjects objects;
  size_t slice = 0;
  for (const ManifestObject& saved : header.manifest.objects) {
    const std::shared_ptr<KvObject> object = NewObject(header.layout, saved.id);
    const size_t bytes = header.layout.SliceBytes(saved.id.tokens);
    for (size_t i = 0; i < saved.slice_digests.size(); ++i, ++slice) {
      std::memcpy(object->bytes.get() + i * bytes, file.data() + header.slice_offsets[slice],
                  bytes);
    }
    object->slice_digests = saved.slice_digests;
    objects.push_back(object);
  }
  return objects;
}

}  // namespace hearth
