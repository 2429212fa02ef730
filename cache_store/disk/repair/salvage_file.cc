#include "cache_store/disk/repair/salvage_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "cache_store/disk/files/disk_tier_records.h"

namespace hearth {
namespace {

// RocksDB's blob file: a header, records, where it was finished a footer. A record: lengths of key
// and value, time of expiry (64 bits each), CRC32c of these, CRC32c of key and value, key, value.
constexpr uint64_t kBlobFileHeadBytes = 30, kBlobFileEndBytes = 32, kBlobHeadBytes = 32;
constexpr uint64_t kBlobKeyBytes = 12;  // of slices: SliceKey
constexpr uint64_t kMaxBlobBytes = uint64_t{1} << 30;
constexpr uint64_t kSearchBytes = uint64_t{1} << 20;

// How many bytes the value has; 0: no record begins there.
uint64_t BlobBytes(absl::string_view head) {
  if (head.size() < kBlobHeadBytes || LittleEndianNumber(head.substr(0, 8)) != kBlobKeyBytes) {
    return 0;
  }
  const uint64_t bytes = LittleEndianNumber(head.substr(8, 8));
  if (bytes > kMaxBlobBytes) return 0;
  return MaskedCrc32c(head.substr(0, 24)) == LittleEndianNumber(head.substr(24, 4)) ? bytes : 0;
}

// Where the next record begins; the file's end: there is none.
uint64_t NextBlob(const RawFile& file, uint64_t from) {
  const std::string begin = std::string(1, static_cast<char>(kBlobKeyBytes)) + std::string(7, '\0');
  for (; from < file.size(); from += kSearchBytes) {
    // Heads that lie across the end are found there.
    const std::string bytes = file.Read(from, kSearchBytes + kBlobHeadBytes);
    for (size_t at = bytes.find(begin); at != std::string::npos; at = bytes.find(begin, at + 1)) {
      if (at < kSearchBytes && BlobBytes(absl::string_view(bytes).substr(at)) > 0) {
        return from + at;
      }
    }
  }
  return file.size();
}

}  // namespace

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

SalvageDamage VisitLog(const RawFile& file, const VisitSalvaged& visit) {
  SalvageDamage damage;
  const auto salvage = [&visit](const BatchEntry& entry) {
    visit({entry.key, entry.value, entry.sequence, entry.is_erase, true});
  };
  const LogScan scan = ScanLog(file.Read(0, file.size()), [&](absl::string_view record, uint64_t) {
    if (!VisitBatch(record, salvage)) damage.Add("a record makes no sense");
  });
  for (uint64_t i = 0; i < scan.mended; ++i) damage.Add("a bit of it is flipped");
  for (uint64_t i = 0; i < scan.holes; ++i) damage.Add("records are damaged");
  return damage;
}

SalvageDamage VisitBlobs(const RawFile& file, const VisitSalvaged& visit) {
  SalvageDamage damage;
  uint64_t at = kBlobFileHeadBytes;
  while (at < file.size()) {
    const std::string head = file.Read(at, kBlobHeadBytes);
    const uint64_t bytes = BlobBytes(head);
    if (bytes == 0) {
      if (at + kBlobFileEndBytes == file.size()) break;
      const uint64_t next = NextBlob(file, at + 1);
      damage.Add(absl::StrCat("no record begins at ", at));
      at = next;
      continue;
    }
    const std::string both = file.Read(at + kBlobHeadBytes, kBlobKeyBytes + bytes);
    const uint64_t value_at = at + kBlobHeadBytes + kBlobKeyBytes;
    if (both.size() < kBlobKeyBytes + bytes) {
      damage.Add(absl::StrCat("the record at ", at, " is cut off"));
      break;
    }
    const absl::string_view all(both);
    visit({all.substr(0, kBlobKeyBytes), all.substr(kBlobKeyBytes), 0, false, false});
    at = value_at + bytes;
  }
  return damage;
}

}  // namespace hearth
