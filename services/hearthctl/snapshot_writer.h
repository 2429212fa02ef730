// SnapshotWriter: writes a snapshot file from pieces of slices in any order. The file appears only
// when complete.
//
// Uses a NewFile. Commit verifies every byte first; without Commit no file remains.
// Thread safety: none.
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
  // `replaces`: see NewFile::Create.
  static absl::StatusOr<std::unique_ptr<SnapshotWriter>> Create(const std::string& path,
                                                                const Fingerprint& fingerprint,
                                                                const Manifest& manifest,
                                                                bool replaces);

  // Writes a piece of a slice: `object` is an index into the manifest's objects, `layer` a model
  // layer index. kDataLoss: the manifest has no such slice or range.
  absl::Status WriteSlice(size_t object, uint32_t layer, uint64_t offset, absl::string_view data);
  absl::Status Commit();

  uint64_t file_bytes() const { return header_.file_bytes; }

 private:
  SnapshotWriter(std::unique_ptr<NewFile> file, SnapshotHeader header);

  const std::unique_ptr<NewFile> file_;
  const SnapshotHeader header_;
  std::vector<size_t> first_slice_;  // by object: index into header_.slice_offsets
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_SNAPSHOT_WRITER_H_
