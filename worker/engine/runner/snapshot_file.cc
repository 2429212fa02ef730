#include "worker/engine/runner/snapshot_file.h"

#include <cassert>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {

absl::StatusOr<std::string> MakeSnapshotFile(const Fingerprint& fingerprint, const KvLayout& layout,
                                             std::vector<uint32_t> token_ids,
                                             const KvObjects& objects) {
  Manifest manifest;
  manifest.fingerprint = fingerprint.digest();
  manifest.token_count = manifest.next_position = static_cast<uint32_t>(token_ids.size());
  manifest.token_ids = std::move(token_ids);
  for (const auto& object : objects)
    manifest.objects.push_back({object->id, object->slice_digests});
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
  if (!LoansHold(objects)) return LoanEnded();
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
