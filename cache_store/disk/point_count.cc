#include "cache_store/disk/point_count.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/byte_codec.h"
#include "proto/kv_layout.h"

namespace hearth {
namespace {

constexpr size_t kCheckedBytes = 8 + 8 + sizeof(BootId);

std::string PathOf(const std::string& dir) { return dir + "/points"; }

uint64_t CheckOf(absl::string_view bytes) { return SliceDigest(bytes.data(), bytes.size()); }

}  // namespace

BootId ThisBoot() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text, digits;
  file >> text;
  for (const char c : text) {
    if (std::isxdigit(static_cast<unsigned char>(c)) != 0) digits += c;
  }
  BootId boot{};
  if (digits.size() != 2 * boot.size()) return boot;
  const std::string bytes = absl::HexStringToBytes(digits);
  std::copy(bytes.begin(), bytes.end(), boot.begin());
  return boot;
}

PointCount::Noted PointCount::Read(const std::string& dir) {
  std::ifstream file(PathOf(dir), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  Noted noted;
  const absl::string_view all(bytes);
  if (all.size() != kCheckedBytes + 8) return noted;
  if (LoadU64(all.substr(kCheckedBytes)) != CheckOf(all.substr(0, kCheckedBytes))) return noted;
  noted.points = LoadU64(all.substr(0, 8));
  noted.drops = LoadU64(all.substr(8, 8));
  std::copy_n(all.data() + 16, noted.boot.size(), noted.boot.begin());
  return noted;
}

absl::StatusOr<std::unique_ptr<PointCount>> PointCount::Open(const std::string& dir) {
  const int file = ::open(PathOf(dir).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", PathOf(dir)));
  return absl::WrapUnique(new PointCount(file, Read(dir)));
}

PointCount::~PointCount() { ::close(file_); }

void PointCount::Begin(absl::flat_hash_set<uint64_t> numbers, uint64_t drops, const BootId& boot) {
  const absl::MutexLock lock(&mu_);
  numbers_ = std::move(numbers);
  now_.boot = boot;
  now_.drops = std::max(now_.drops, drops);
  Write().IgnoreError();
}

void PointCount::Add(absl::Span<const uint64_t> numbers) {
  const absl::MutexLock lock(&mu_);
  numbers_.insert(numbers.begin(), numbers.end());
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
  bytes.append(reinterpret_cast<const char*>(now_.boot.data()), now_.boot.size());
  AppendU64(&bytes, CheckOf(bytes));
  const ssize_t written = ::pwrite(file_, bytes.data(), bytes.size(), 0);
  if (written == static_cast<ssize_t>(bytes.size())) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "write of the count of restore points");
}

}  // namespace hearth
