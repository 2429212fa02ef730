#include "cache_store/disk/files/disk_tier_reserve.h"

#include <algorithm>
#include <cassert>
#include <memory>
#include <random>

#include "cache_store/disk/files/rocks_status.h"

namespace hearth {
namespace {

constexpr size_t kPieceBytes = size_t{64} << 10;
constexpr uint32_t kMaxPause = 1023;
// The reserve file is written only if this many bytes stay free.
constexpr uint64_t kAmpleBytes = 4 * kReserveBytes;

std::string PathOf(const std::string& dir) { return dir + "/reserve"; }

// Returns random bytes, because some file systems allocate no space for zeros.
std::string Noise() {
  std::mt19937_64 random(1);
  std::string noise(kPieceBytes, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  return noise;
}

}  // namespace

void Reserve::MakeFile() {
  const absl::MutexLock lock(&mu_);
  is_whole_.store(MakeWhole());
}

void Reserve::NoteWrite() {
  if (is_whole_.load() || waited_.fetch_add(1) < pause_.load() || !HasAmpleRoom()) return;
  MakeFile();
  waited_.store(0);
  pause_.store(is_whole_.load() ? 0 : std::min(2 * pause_.load() + 1, kMaxPause));
}

bool Reserve::HasAmpleRoom() const {
  uint64_t free_bytes = 0;
  const rocksdb::IOStatus asked = files_->GetFreeSpace(dir_, kPlain, &free_bytes, nullptr);
  return !asked.ok() || free_bytes >= kAmpleBytes;
}

bool Reserve::MakeWhole() {
  const rocksdb::FileOptions options;
  const std::string path = PathOf(dir_);
  uint64_t bytes = 0;
  const bool is_there = files_->GetFileSize(path, kPlain, &bytes, nullptr).ok();
  std::unique_ptr<rocksdb::FSWritableFile> file;
  rocksdb::IOStatus status = is_there ? files_->ReopenWritableFile(path, options, &file, nullptr)
                                      : files_->NewWritableFile(path, options, &file, nullptr);
  if (!status.ok()) return false;
  const std::string noise = Noise();
  while (status.ok() && bytes < kReserveBytes) {
    const size_t piece = std::min<uint64_t>(noise.size(), kReserveBytes - bytes);
    status = file->Append(rocksdb::Slice(noise.data(), piece), kPlain, nullptr);
    bytes += piece;
  }
  // Keep and sync a partial file: it is better than none, and must survive a machine crash, because
  // at the next start other programs may have filled the disk. An existing file may not have been
  // synced yet by a killed process or a failed attempt.
  assert(!status.ok() || bytes >= kReserveBytes);
  const rocksdb::IOStatus synced = file->Sync(kPlain, nullptr);
  const rocksdb::IOStatus closed = file->Close(kPlain, nullptr);
  const bool is_named = SyncFolder(files_, dir_).ok();
  return status.ok() && synced.ok() && closed.ok() && is_named;
}

bool Reserve::GiveUp() {
  is_whole_.store(false);
  return files_->DeleteFile(PathOf(dir_), kPlain, nullptr).ok();
}

}  // namespace hearth
