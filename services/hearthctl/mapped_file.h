// MappedFile: a file mapped read-only into memory.
//
// Thread safety: const after Open. Ownership: bytes() is valid while the object lives; the file
// must not shrink meanwhile.
#ifndef HEARTH_SERVICES_HEARTHCTL_MAPPED_FILE_H_
#define HEARTH_SERVICES_HEARTHCTL_MAPPED_FILE_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace hearth {

class MappedFile {
 public:
  // Never blocks. kNotFound, kPermissionDenied and kInvalidArgument (the file is empty, or a
  // folder, a pipe, ...) name the path.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  absl::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  MappedFile(void* data, size_t size) : data_(data), size_(size) {}

  void* const data_;
  const size_t size_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_MAPPED_FILE_H_
