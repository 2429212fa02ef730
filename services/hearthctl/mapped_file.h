// MappedFile: a file that is mapped read-only into memory.
//
// Thread safety: const after Open. Ownership: bytes() is valid during the object's lifetime, in
// which the file must not be truncated.
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
  // Maps the file. Never blocks. kNotFound, kPermissionDenied and kInvalidArgument (empty file,
  // folder, pipe and so on) name the path.
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
