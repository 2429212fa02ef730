#include "cache_store/disk/disk_tier_lost.h"

#include <rocksdb/file_system.h>
#include <rocksdb/metadata.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/sst_file_writer.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cache_store/disk/disk_tier_db.h"
#include "cache_store/disk/files/disk_tier_lost_folder.h"
#include "cache_store/disk/stored_records.h"

namespace hearth {
namespace {

constexpr size_t kFooterBytes = 53;

// OK: its footer, index and properties are whole, and it is as long as it was.
rocksdb::Status TryTable(const rocksdb::Options& options, const std::string& path,
                         uint64_t expected_bytes) {
  uint64_t bytes = 0;
  const auto& files = options.env->GetFileSystem();
  rocksdb::Status status = files->GetFileSize(path, kPlain, &bytes, nullptr);
  if (!status.ok()) return status;
  if (bytes != expected_bytes) {
    return rocksdb::Status::Corruption(
        absl::StrCat("it has ", bytes, " bytes, expected ", expected_bytes));
  }
  return rocksdb::SstFileReader(options).Open(path);
}

// Of a table that was linked RocksDB could write a number into it later, so these bytes are left
// out of their block's checksum; it never does (disk_tier_tables.cc), and they are zeros.
// `*was_wrong`: they were not, and are again.
rocksdb::Status ZeroTheNumber(const rocksdb::Options& options, const std::string& path,
                              bool* was_wrong) {
  rocksdb::SstFileReader reader(options);
  rocksdb::Status status = reader.Open(path);
  if (!status.ok()) return status;
  const uint64_t at = reader.GetTableProperties()->external_sst_file_global_seqno_offset;
  const std::string zeros(8, '\0');
  char scratch[8];
  rocksdb::Slice bytes;
  std::unique_ptr<rocksdb::FSRandomRWFile> file;
  if (at == 0) return status;
  status =
      options.env->GetFileSystem()->NewRandomRWFile(path, rocksdb::FileOptions(), &file, nullptr);
  if (status.ok()) status = file->Read(at, zeros.size(), kPlain, &bytes, scratch, nullptr);
  if (!status.ok() || ToView(bytes) == zeros) return status;
  *was_wrong = true;
  status = file->Write(at, zeros, kPlain, nullptr);
  if (status.ok()) status = file->Fsync(kPlain, nullptr);
  return status;
}

rocksdb::Options OptionsOf(const rocksdb::DBOptions& options,
                           const std::vector<rocksdb::ColumnFamilyDescriptor>& families,
                           const std::string& name) {
  const auto family = std::find_if(families.begin(), families.end(),
                                   [&](const auto& one) { return one.name == name; });
  return family == families.end() ? rocksdb::Options(options, rocksdb::ColumnFamilyOptions())
                                  : rocksdb::Options(options, family->options);
}

// Above all of our keys that are less than `key`, below `key`, and none of ours.
std::string JustBelow(std::string key) {
  const unsigned char last = static_cast<unsigned char>(key.back());
  key.pop_back();
  if (last == 0) return key;
  return key + static_cast<char>(last - 1) + std::string(8, '\xff');
}

// Of number `at` of `tables`, in RocksDB's order: the key that its stand-in erases. Behind the
// first key there is nothing of ours. But from level 1 on RocksDB may keep the versions of one key
// in tables one behind the other, newest first, and it asserts that their keys ascend.
std::string KeyToErase(const std::vector<rocksdb::LiveFileMetaData>& tables, size_t at) {
  const std::string& first = tables[at].smallestkey;
  const auto is_beside = [&](size_t other) {
    return other < tables.size() && tables[other].level == tables[at].level &&
           tables[other].column_family_name == tables[at].column_family_name;
  };
  const bool older_behind = tables[at].level > 0 && tables[at].largestkey == first &&
                            is_beside(at + 1) && tables[at + 1].smallestkey == first;
  if (!older_behind) return first + '\x01';
  // Whatever it hides, a newer version hides already.
  const bool newer_before = at > 0 && is_beside(at - 1) && tables[at - 1].largestkey == first;
  return newer_before ? first : JustBelow(first);
}

// A table of `bytes` bytes in which nothing is to be found, but that `key` is erased. It is mostly
// a hole: there may be little room.
rocksdb::Status MakeStandIn(const rocksdb::Options& options, const std::string& path,
                            const std::string& key, uint64_t bytes) {
  const auto& files = options.env->GetFileSystem();
  std::string made;
  rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), options);
  rocksdb::Status status = writer.Open(path);
  if (status.ok()) status = writer.Delete(key);
  if (status.ok()) status = writer.Finish();
  if (status.ok()) status = rocksdb::ReadFileToString(files.get(), path, &made);
  if (status.ok() && made.size() > bytes) {
    status = rocksdb::Status::NotSupported("the table was too small");
  }
  std::unique_ptr<rocksdb::FSRandomRWFile> file;
  if (status.ok()) {
    status = files->NewRandomRWFile(path, rocksdb::FileOptions(), &file, nullptr);
  }
  // Places in a table are counted from its beginning, and the footer is looked for at its end.
  const uint64_t body = made.size() - std::min(made.size(), kFooterBytes);
  const std::string zeros(kFooterBytes, '\0'), footer = made.substr(body);
  if (status.ok()) status = file->Write(body, zeros, kPlain, nullptr);
  if (status.ok()) status = file->Write(bytes - kFooterBytes, footer, kPlain, nullptr);
  if (status.ok()) status = file->Fsync(kPlain, nullptr);
  if (status.ok()) status = file->Close(kPlain, nullptr);
  return status;
}

std::string NumbersOf(const rocksdb::LiveFileMetaData& file) {
  const absl::StatusOr<uint64_t> first = ParseNumberKey(file.smallestkey);
  const absl::StatusOr<uint64_t> last = ParseNumberKey(file.largestkey);
  if (!first.ok() || !last.ok() || *last >> 48 != 0) return "";
  return absl::StrCat(", numbers ", *first, " to ", *last);
}

// The table number `at`.
absl::Status Replace(const rocksdb::Options& options, const std::string& path,
                     const std::vector<rocksdb::LiveFileMetaData>& tables, size_t at,
                     const rocksdb::Status& why, FoundDamage* found) {
  const rocksdb::LiveFileMetaData& file = tables[at];
  const auto& files = options.env->GetFileSystem();
  const std::string table = absl::StrCat(path, "/", file.relative_filename);
  const std::string part = table + ".stand_in";
  std::string kept;
  // The lost one stays where it is until there is something to put in its place.
  rocksdb::Status status = MakeStandIn(options, part, KeyToErase(tables, at), file.size);
  if (status.ok() && files->FileExists(table, kPlain, nullptr).ok()) {
    status = MoveToLost(files.get(), table, &kept);
  }
  if (status.ok()) status = files->RenameFile(part, table, kPlain, nullptr);
  if (!status.ok()) files->DeleteFile(part, kPlain, nullptr).PermitUncheckedError();
  if (!status.ok()) return FromRocks(status, absl::StrCat("replacing the lost table ", table));
  found->Add(absl::StrCat("table ", table, " (", file.column_family_name, NumbersOf(file),
                          ") cannot be opened: ", why.ToString(), "; what it held is lost",
                          kept.empty() ? ""
                                       : absl::StrCat(", the file is kept as ", kept,
                                                      ": hearthctl repair takes from it "
                                                      "what is still right")));
  return absl::OkStatus();
}

}  // namespace

bool AllTablesOpen(rocksdb::DB* db, const rocksdb::Options& options,
                   const std::vector<std::string>& skipped) {
  std::vector<rocksdb::LiveFileMetaData> tables;
  db->GetLiveFilesMetaData(&tables);
  return std::all_of(tables.begin(), tables.end(), [&](const auto& file) {
    const bool is_skipped = std::count(skipped.begin(), skipped.end(), file.column_family_name) > 0;
    return is_skipped ||
           TryTable(options, db->GetName() + "/" + file.relative_filename, file.size).ok();
  });
}

absl::Status ReplaceLostTables(const rocksdb::DBOptions& options, const std::string& path,
                               const std::vector<rocksdb::ColumnFamilyDescriptor>& families,
                               FoundDamage* found) {
  // Only looked at: opened for writing it would begin to compact what is left.
  rocksdb::DBOptions tolerant = options;
  tolerant.paranoid_checks = false;
  tolerant.create_if_missing = tolerant.create_missing_column_families = false;
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status opened =
      rocksdb::DB::OpenForReadOnly(tolerant, path, families, &handles, &db);
  if (!opened.ok()) return FromRocks(opened, "look at the tables");
  std::vector<rocksdb::LiveFileMetaData> tables;
  db->GetLiveFilesMetaData(&tables);
  for (rocksdb::ColumnFamilyHandle* handle : handles) db->DestroyColumnFamilyHandle(handle);
  delete db;
  for (size_t at = 0; at < tables.size(); ++at) {
    const rocksdb::LiveFileMetaData& file = tables[at];
    const rocksdb::Options of_family = OptionsOf(options, families, file.column_family_name);
    const std::string table = absl::StrCat(path, "/", file.relative_filename);
    rocksdb::Status tried = TryTable(of_family, table, file.size);
    bool was_wrong = false;
    if (tried.ok()) tried = ZeroTheNumber(of_family, table, &was_wrong);
    if (tried.ok() && was_wrong) {
      found->AddMended(absl::StrCat("table ", table, " had a flipped bit: it was put right, ",
                                    "nothing is lost"));
    }
    if (tried.ok() || !(tried.IsCorruption() || tried.IsPathNotFound() || tried.IsNotFound())) {
      continue;
    }
    absl::Status replaced = Replace(of_family, path, tables, at, tried, found);
    if (!replaced.ok()) return replaced;
  }
  return absl::OkStatus();
}

}  // namespace hearth
