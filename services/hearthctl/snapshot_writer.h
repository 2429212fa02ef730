// SnapshotWriter: writes a snapshot file from pieces of slices that arrive in any order.
//
// Writes a temporary file (NewFile). Commit verifies every byte and renames the file; without
// Commit no file remains. Thread safety: none.
#ifndef HEARTH_SERVICES_HEARTHCTL_SNAPSHOT_WRITER_H_
#define HEARTH_SERVICES_HEARTHCTL_SNAPSHOT_WRITER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/snapshot_format.h"
#include "services/hearthctl/new_file.h"

namespace hearth {

class SnapshotWriter {
 public:
  // `replaces`: whether Commit overwrites an existing file; see NewFile::Create.
  static absl::StatusOr<std::unique_ptr<SnapshotWriter>> Create(const std::string& path,
                                                                const Fingerprint& fingerprint,
                                                                const Manifest& manifest,
                                                                bool replaces);

  // Writes a piece of a slice at the byte `offset` in the slice. `object` is an index into the
  // manifest's objects, `layer` a model layer number. kDataLoss: the manifest has no such slice, or
  // the piece is outside the slice.
  absl::Status WriteSlice(size_t object, uint32_t layer, uint64_t offset, absl::string_view data);
  absl::Status Commit();

  uint64_t file_bytes() const { return header_.file_bytes; }

 private:
  SnapshotWriter(std::unique_ptr<NewFile> file, SnapshotHeader header);

  const std::unique_ptr<NewFile> file_;
  const SnapshotHeader header_;
  // for each object, the index of its first slice in header_.slice_offsets
  std::vector<size_t> first_slice_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_SNAPSHOT_WRITER_H_
