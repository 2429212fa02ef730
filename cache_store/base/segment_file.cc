#include "cache_store/base/segment_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "cache_store/base/secret.h"

namespace hearth {
namespace {

absl::Status SegmentError(const char* what) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot create shared memory: ", what, ": ", strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SegmentFile>> SegmentFile::Create(SegmentLayout layout) {
  const absl::StatusOr<std::string> random = MakeSecret();
  if (!random.ok()) return random.status();
  std::memcpy(layout.id.data(), random->data(), layout.id.size());
  std::unique_ptr<SegmentFile> file(new SegmentFile(layout));
  file->fd_ = memfd_create("hearth-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file->fd_ < 0) return SegmentError("memfd_create");
  if (ftruncate(file->fd_, static_cast<off_t>(layout.file_bytes())) != 0) {
    return SegmentError("ftruncate");
  }
  void* mapping = mmap(nullptr, layout.file_bytes(), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_NORESERVE, file->fd_, 0);
  if (mapping == MAP_FAILED) return SegmentError("mmap");
  file->mapping_ = static_cast<std::byte*>(mapping);
  const std::string header = EncodeSegmentHeader(layout);
  std::memcpy(file->mapping_, header.data(), header.size());
  // After sealing, only this mapping can write, and the size of the segment never changes.
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  if (fcntl(file->fd_, F_ADD_SEALS, seals) != 0) {
    return SegmentError("sealing it needs Linux 5.1 or newer");
  }
  return file;
}

SegmentFile::~SegmentFile() {
  if (mapping_ != nullptr) munmap(mapping_, layout_.file_bytes());
  if (fd_ >= 0) close(fd_);
}

}  // namespace hearth
