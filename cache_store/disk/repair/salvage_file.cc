#include "cache_store/disk/repair/salvage_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace hearth {
RawFile::RawFile(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat info {};
  if (fd_ >= 0 && ::fstat(fd_, &info) == 0) size_ = static_cast<uint64_t>(info.st_size);
}

RawFile::~RawFile() {
  if (fd_ >= 0) ::close(fd_);
}

std::string RawFile::Read(uint64_t offset, uint64_t bytes) const {
  std::string read;
  if (fd_ < 0 || offset >= size_) return read;
  read.resize(std::min(bytes, size_ - offset));
  size_t have = 0;
  while (have < read.size()) {
    const ssize_t got =
        ::pread(fd_, read.data() + have, read.size() - have, static_cast<off_t>(offset + have));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    have += static_cast<size_t>(got);
  }
  read.resize(have);
  return read;
}

std::optional<uint64_t> TakeVarint(absl::string_view* bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes->size() && i < 10; ++i) {
    const auto byte = static_cast<uint8_t>((*bytes)[i]);
    value |= uint64_t{byte & 0x7Fu} << (7 * i);
    if (byte < 0x80) {
      bytes->remove_prefix(i + 1);
      return value;
    }
  }
  return std::nullopt;
}

std::optional<absl::string_view> TakeLengthAndBytes(absl::string_view* bytes) {
  const std::optional<uint64_t> length = TakeVarint(bytes);
  if (!length.has_value() || *length > bytes->size()) return std::nullopt;
  const absl::string_view taken = bytes->substr(0, *length);
  bytes->remove_prefix(*length);
  return taken;
}

}  // namespace hearth
