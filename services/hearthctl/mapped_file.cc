#include "services/hearthctl/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "cache_store/base/regular_file.h"

namespace hearth {
namespace {

// Returns why a file of this kind and size cannot be mapped; "" if it can be mapped.
std::string WhyNot(const struct stat& info) {
  if (!S_ISREG(info.st_mode)) return absl::StrCat(" is ", FileKind(info.st_mode), ", not a file");
  return info.st_size == 0 ? " is empty" : "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: without it, opening a pipe would block until another process opens it for writing.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  }
  struct stat info;
  absl::StatusOr<std::unique_ptr<MappedFile>> result;
  if (::fstat(file, &info) != 0) {
    result = absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  } else if (const std::string why = WhyNot(info); !why.empty()) {
    result = absl::InvalidArgumentError(absl::StrCat(path, why));
  } else {
    const size_t size = static_cast<size_t>(info.st_size);
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    if (data == MAP_FAILED) {
      result = absl::ErrnoToStatus(errno, absl::StrCat("cannot map ", path));
    } else {
      result = std::unique_ptr<MappedFile>(new MappedFile(data, size));
    }
  }
  ::close(file);
  return result;
}

MappedFile::~MappedFile() { ::munmap(data_, size_); }

}  // namespace hearth
