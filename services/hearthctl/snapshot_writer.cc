#include "services/hearthctl/snapshot_writer.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/hearthctl/mapped_file.h"

namespace hearth {

absl::StatusOr<std::unique_ptr<SnapshotWriter>> SnapshotWriter::Create(
    const std::string& path, const Fingerprint& fingerprint, const Manifest& manifest,
    bool replaces) {
  auto bytes = BuildSnapshotHeader(fingerprint, manifest);
  if (!bytes.ok()) return bytes.status();
  auto header = ParseSnapshotHeader(*bytes);
  if (!header.ok()) return header.status();
  auto file = NewFile::Create(path, replaces);
  if (!file.ok()) return file.status();
  std::unique_ptr<SnapshotWriter> writer(new SnapshotWriter(*std::move(file), *std::move(header)));
  // Reserves the full size now, so that a full disk is noticed before the transfer. The padding
  // between slices reads as zeros.
  const int error =
      ::posix_fallocate(writer->file_->descriptor(), 0, static_cast<off_t>(writer->file_bytes()));
  if (error != 0) {
    return absl::ErrnoToStatus(
        error, absl::StrCat("cannot reserve ", writer->file_bytes(), " bytes at ", path));
  }
  absl::Status status = writer->file_->WriteAt(0, *bytes);
  if (!status.ok()) return status;
  return writer;
}

SnapshotWriter::SnapshotWriter(std::unique_ptr<NewFile> file, SnapshotHeader header)
    : file_(std::move(file)), header_(std::move(header)) {
  size_t slices = 0;
  for (const ManifestObject& object : header_.manifest.objects) {
    first_slice_.push_back(slices);
    slices += object.slice_digests.size();
  }
}

absl::Status SnapshotWriter::WriteSlice(size_t object, uint32_t layer, uint64_t offset,
                                        absl::string_view data) {
  if (object >= first_slice_.size()) {
    return absl::DataLossError(absl::StrCat("store sent a slice of the unknown object ", object));
  }
  const ObjectId& id = header_.manifest.objects[object].id;
  const std::vector<uint32_t> layers = header_.layout.LayersOf(id.group);
  const auto found = std::lower_bound(layers.begin(), layers.end(), layer);
  const uint64_t slice_bytes = header_.layout.SliceBytes(id.tokens);
  if (found == layers.end() || *found != layer || offset > slice_bytes ||
      data.size() > slice_bytes - offset) {
    return absl::DataLossError(absl::StrCat("object ", object, " has no layer ", layer, ", bytes ",
                                            offset, " to ", offset + data.size()));
  }
  const size_t slice = first_slice_[object] + static_cast<size_t>(found - layers.begin());
  return file_->WriteAt(header_.slice_offsets[slice] + offset, data);
}

absl::Status SnapshotWriter::Commit() {
  {
    auto written = MappedFile::Open(file_->temporary_path());
    if (!written.ok()) return written.status();
    absl::Status status = VerifySnapshotFile((*written)->bytes());
    if (!status.ok()) return status;
  }
  return file_->Commit();
}

}  // namespace hearth
