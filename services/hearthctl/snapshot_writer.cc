#include "services/hearthctl/snapshot_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/hearthctl/mapped_file.h"

namespace hearth {

absl::StatusOr<std::unique_ptr<SnapshotWriter>> SnapshotWriter::Create(
    const std::string& path, const Fingerprint& fingerprint, const Manifest& manifest) {
  auto bytes = BuildSnapshotHeader(fingerprint, manifest);
  if (!bytes.ok()) return bytes.status();
  auto header = ParseSnapshotHeader(*bytes);
  if (!header.ok()) return header.status();
  std::string temporary = path + ".partial-XXXXXX";
  const int file = ::mkstemp(temporary.data());
  if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write beside ", path));
  std::unique_ptr<SnapshotWriter> writer(
      new SnapshotWriter(path, std::move(temporary), file, *std::move(header)));
  // The full size at once: a full disk is found before the transfer, and gaps are zero.
  const int error = ::posix_fallocate(file, 0, static_cast<off_t>(writer->file_bytes()));
  if (error != 0) {
    return absl::ErrnoToStatus(
        error, absl::StrCat("no room for ", writer->file_bytes(), " bytes at ", path));
  }
  absl::Status status = writer->WriteAt(0, *bytes);
  if (!status.ok()) return status;
  return writer;
}

SnapshotWriter::SnapshotWriter(std::string path, std::string temporary, int file,
                               SnapshotHeader header)
    : path_(std::move(path)),
      temporary_(std::move(temporary)),
      file_(file),
      header_(std::move(header)) {
  size_t slices = 0;
  for (const ManifestObject& object : header_.manifest.objects) {
    first_slice_.push_back(slices);
    slices += object.slice_digests.size();
  }
}

SnapshotWriter::~SnapshotWriter() {
  ::close(file_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

absl::Status SnapshotWriter::WriteSlice(size_t object, uint32_t layer, uint64_t offset,
                                        absl::string_view data) {
  if (object >= first_slice_.size()) {
    return absl::DataLossError(absl::StrCat("slice of the unknown object ", object));
  }
  const ObjectId& id = header_.manifest.objects[object].id;
  const std::vector<uint32_t> layers = header_.layout.LayersOf(id.group);
  const auto found = std::lower_bound(layers.begin(), layers.end(), layer);
  const uint64_t slice_bytes = header_.layout.SliceBytes(id.tokens);
  if (found == layers.end() || *found != layer || offset > slice_bytes ||
      data.size() > slice_bytes - offset) {
    return absl::DataLossError(absl::StrCat("object ", object, " has no place for layer ", layer,
                                            ", bytes ", offset, " to ", offset + data.size()));
  }
  const size_t slice = first_slice_[object] + static_cast<size_t>(found - layers.begin());
  return WriteAt(header_.slice_offsets[slice] + offset, data);
}

absl::Status SnapshotWriter::Commit() {
  assert(!temporary_.empty());  // once
  {
    auto written = MappedFile::Open(temporary_);
    if (!written.ok()) return written.status();
    absl::Status status = VerifySnapshotFile((*written)->bytes());
    if (!status.ok()) return status;
  }
  // mkstemp makes the file private to its owner; a snapshot is as readable as any other file.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  if (::fchmod(file_, 0666 & ~mask) != 0 || ::fsync(file_) != 0 ||
      std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot finish ", path_));
  }
  temporary_.clear();
  return absl::OkStatus();
}

absl::Status SnapshotWriter::WriteAt(uint64_t offset, absl::string_view data) {
  while (!data.empty()) {
    const ssize_t count = ::pwrite(file_, data.data(), data.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path_));
    data.remove_prefix(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  return absl::OkStatus();
}

}  // namespace hearth
