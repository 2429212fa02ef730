#include <rocksdb/metadata.h>
#include <rocksdb/sst_file_reader.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cache_store/disk/disk_tier_backup.h"
#include "cache_store/disk/disk_tier_load.h"
#include "cache_store/disk/stored_records.h"

namespace hearth {
namespace {

// Copies are named NUMBER_SESSION.sst, or NUMBER_SUM_SIZE.sst.
uint64_t NumberOfCopy(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  uint64_t number = 0;
  return absl::SimpleAtoi(name.substr(0, name.find_first_of("_.")), &number) ? number : 0;
}

// Whether a slice of an object that is still there can no longer be read from a table of the
// source.
bool HoldsLiveRot(const Database& source, uint64_t table) {
  std::vector<rocksdb::LiveFileMetaData> files;
  source->GetLiveFilesMetaData(&files);
  for (const rocksdb::LiveFileMetaData& file : files) {
    if (file.file_number != table) continue;
    if (file.column_family_name != kFamilyNames[kTables]) return true;  // records, or their places
    const std::unique_ptr<rocksdb::Iterator> it(
        source->NewIterator(VerifiedReads(), source.family(kObjects)));
    const std::string end = file.largestkey.substr(0, NumberKey(0).size());
    for (it->Seek(file.smallestkey.substr(0, end.size()));
         it->Valid() && it->key().compare(end) <= 0; it->Next()) {
      const absl::StatusOr<ObjectRecord> object = ParseObject(ToView(it->value()));
      if (!object.ok()) return true;
      for (const uint32_t layer : object->layers) {
        rocksdb::PinnableSlice value;
        // Not GetSlice, which leaves rot in large slices to readers that know their digests.
        const rocksdb::Status status = source->Get(VerifiedReads(), source.family(kTables),
                                                   SliceKey(object->number, layer), &value);
        if (!status.ok() && !status.IsNotFound()) return true;
      }
    }
    return !it->status().ok();
  }
  return true;
}

absl::Status CheckTables(const Database& source, const FolderFiles& before,
                         const FolderFiles& after) {
  for (const auto& [path, bytes] : after) {
    if (!absl::EndsWith(path, ".sst") || before.count(path) > 0) continue;
    rocksdb::SstFileReader reader{rocksdb::Options()};
    rocksdb::Status status = reader.Open(path);
    if (status.ok()) status = reader.VerifyChecksum(VerifiedReads());
    const uint64_t number = NumberOfCopy(path);
    if (status.ok() || !HoldsLiveRot(source, number)) continue;
    return FromRocks(status, absl::StrCat("table ", absl::Dec(number, absl::kZeroPad6),
                                          ".sst of the data folder is damaged"));
  }
  return absl::OkStatus();
}

absl::Status CheckRecords(const rocksdb::BackupInfo& info) {
  DiskTierOptions options;
  options.env = info.env_for_open.get();
  std::unique_ptr<Database> copy;
  absl::Status status =
      Database::Open(info.name_for_open, Database::Mode::kLookAtCopy, &copy, options);
  if (!status.ok()) return status;
  const absl::StatusOr<DiskContents> contents = LoadContents(*copy, {}, {});
  if (!contents.ok()) return contents.status();
  return contents->damage.empty() ? absl::OkStatus() : absl::DataLossError(contents->damage[0]);
}

}  // namespace

FolderFiles FilesUnder(const std::string& folder) {
  FolderFiles files;
  std::error_code error;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, error)) {
    if (entry.is_regular_file(error)) files[entry.path().string()] = entry.file_size(error);
  }
  return files;
}

absl::Status CheckBackup(const Database& source, const rocksdb::BackupInfo& info,
                         const FolderFiles& before, const FolderFiles& after) {
  if (absl::Status tables = CheckTables(source, before, after); !tables.ok()) return tables;
  return CheckRecords(info);
}

}  // namespace hearth
