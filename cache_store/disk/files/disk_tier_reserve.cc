#include "cache_store/disk/files/disk_tier_reserve.h"

#include <memory>
#include <random>

#include "cache_store/disk/files/disk_tier_sync_folder.h"

namespace hearth {
namespace {

constexpr size_t kPieceBytes = size_t{64} << 10;

std::string PathOf(const std::string& dir) { return dir + "/reserve"; }

// Some file systems would keep no room for zeros.
std::string Noise() {
  std::mt19937_64 random(1);
  std::string noise(kPieceBytes, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  return noise;
}

}  // namespace

void KeepReserve(rocksdb::FileSystem* files, const std::string& dir) {
  const rocksdb::IOOptions plain;
  const std::string path = PathOf(dir);
  uint64_t bytes = 0;
  if (files->GetFileSize(path, plain, &bytes, nullptr).ok() && bytes >= kReserveBytes) return;
  std::unique_ptr<rocksdb::FSWritableFile> file;
  if (!files->NewWritableFile(path, rocksdb::FileOptions(), &file, nullptr).ok()) return;
  const std::string noise = Noise();
  rocksdb::IOStatus status;
  for (bytes = 0; status.ok() && bytes < kReserveBytes; bytes += noise.size()) {
    status = file->Append(noise, plain, nullptr);
  }
  // What was written before there was no more room is better than nothing. It is to be there when
  // the machine stops, too: the next start may find that others filled the disk meanwhile.
  file->Sync(plain, nullptr).PermitUncheckedError();
  file->Close(plain, nullptr).PermitUncheckedError();
  SyncFolder(files, dir).PermitUncheckedError();
}

bool GiveUpReserve(rocksdb::FileSystem* files, const std::string& dir) {
  return files->DeleteFile(PathOf(dir), rocksdb::IOOptions(), nullptr).ok();
}

}  // namespace hearth
