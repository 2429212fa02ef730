#include "cache_store/disk/point_count.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <fstream>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "cache_store/base/regular_file.h"
#include "proto/byte_codec.h"
#include "proto/kv_layout.h"

namespace hearth {
namespace {

constexpr size_t kCheckedBytes = 3 * 8;

std::string PathOf(const std::string& dir) { return dir + "/points"; }

}  // namespace

BootId ThisBoot() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  file >> text;
  return SliceDigest(text.data(), text.size());
}

PointCount::Noted PointCount::Read(const std::string& dir) {
  const absl::StatusOr<std::string> bytes = ReadBoundedFile(PathOf(dir), kCheckedBytes + 8);
  Noted noted;
  if (!bytes.ok()) return noted;
  const absl::StatusOr<absl::string_view> numbers = StripDigest(*bytes, "points");
  if (!numbers.ok() || numbers->size() != kCheckedBytes) return noted;
  ByteReader reader(*numbers);
  noted.points = reader.U64("points");
  noted.drops = reader.U64("drops");
  noted.boot = reader.U64("boot");
  return noted;
}

absl::StatusOr<std::unique_ptr<PointCount>> PointCount::Open(const std::string& dir) {
  const absl::StatusOr<int> file =
      OpenRegularFile(PathOf(dir), O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
  if (!file.ok()) return file.status();
  return absl::WrapUnique(new PointCount(*file, Read(dir)));
}

PointCount::~PointCount() { ::close(file_); }

void PointCount::Begin(absl::Span<const uint64_t> numbers, uint64_t drops, BootId boot) {
  const absl::MutexLock lock(&mu_);
  numbers_ = {numbers.begin(), numbers.end()};
  now_.boot = boot;
  now_.drops = std::max(now_.drops, drops);
  Write().IgnoreError();
}

void PointCount::Add(absl::Span<const uint64_t> numbers, absl::Span<const uint64_t> replaced) {
  const absl::MutexLock lock(&mu_);
  for (const uint64_t number : replaced) numbers_.erase(number);
  numbers_.insert(numbers.begin(), numbers.end());
  for (const uint64_t number : replaced) assert(number == 0 || !numbers_.contains(number));
  Write().IgnoreError();
}

std::vector<uint64_t> PointCount::Remove(absl::Span<const uint64_t> numbers) {
  std::vector<uint64_t> removed;
  const absl::MutexLock lock(&mu_);
  for (const uint64_t number : numbers) {
    if (numbers_.erase(number) > 0) removed.push_back(number);
  }
  Write().IgnoreError();
  return removed;
}

PointCount::Noted PointCount::noted() const {
  const absl::MutexLock lock(&mu_);
  return now_;
}

absl::Status PointCount::NoteDrops(uint64_t drops) {
  assert(drops > 0);
  const absl::MutexLock lock(&mu_);
  now_.drops = std::max(now_.drops, drops);
  absl::Status written = Write();
  if (written.ok() && ::fdatasync(file_) != 0) written = absl::ErrnoToStatus(errno, "sync");
  return written;
}

absl::Status PointCount::Write() {
  now_.points = numbers_.size();
  std::string bytes;
  AppendU64(&bytes, now_.points);
  AppendU64(&bytes, now_.drops);
  AppendU64(&bytes, now_.boot);
  AppendDigest(&bytes);
  assert(bytes.size() == kCheckedBytes + sizeof(uint64_t));  // the size that Read() expects
  const ssize_t written = ::pwrite(file_, bytes.data(), bytes.size(), 0);
  if (written == static_cast<ssize_t>(bytes.size())) return absl::OkStatus();
  constexpr char kWhat[] = "writing the count of restore points";
  // A short write sets no errno.
  return written < 0 ? absl::ErrnoToStatus(errno, kWhat)
                     : absl::ResourceExhaustedError(
                           absl::StrCat(kWhat, ": only ", written, " of ", bytes.size(), " bytes"));
}

}  // namespace hearth
