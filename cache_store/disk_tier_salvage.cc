#include "cache_store/disk_tier_salvage.h"

#include <rocksdb/sst_file_reader.h>
#include <rocksdb/table_properties.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cache_store/disk_tier_manifest.h"
#include "cache_store/disk_tier_records.h"
#include "cache_store/disk_tier_tables.h"
#include "cache_store/stored_records.h"

namespace hearth {
namespace {

const rocksdb::IOOptions kNoIoOptions;

struct OldLog {
  uint64_t number = 0;
  std::string path;
  LogScan scan;
  bool is_to_be_read_on = false;  // behind a hole
};

std::vector<OldLog> LogsIn(rocksdb::FileSystem* files, const std::string& path) {
  std::vector<std::string> names;
  files->GetChildren(path, kNoIoOptions, &names, nullptr).PermitUncheckedError();
  std::vector<OldLog> logs;
  for (const std::string& name : names) {
    absl::string_view digits = name;
    uint64_t number = 0;
    if (!absl::ConsumeSuffix(&digits, ".log") || !absl::SimpleAtoi(digits, &number)) continue;
    logs.push_back({number, absl::StrCat(path, "/", name), {}, false});
  }
  std::sort(logs.begin(), logs.end(),
            [](const OldLog& a, const OldLog& b) { return a.number < b.number; });
  return logs;
}

// What batches write.
class Puts : public rocksdb::WriteBatch::Handler {
 public:
  using Visit = std::function<void(uint32_t family, uint64_t number, const rocksdb::Slice& value)>;
  explicit Puts(Visit visit) : visit_(std::move(visit)) {}
  void Add(absl::string_view record) {
    rocksdb::WriteBatch(std::string(record)).Iterate(this).PermitUncheckedError();
  }
  rocksdb::Status PutCF(uint32_t family, const rocksdb::Slice& key,
                        const rocksdb::Slice& value) override {
    const absl::StatusOr<uint64_t> number = ParseNumberKey(ToView(key));
    if (number.ok()) visit_(family, *number, value);
    return rocksdb::Status::OK();
  }
  rocksdb::Status DeleteCF(uint32_t, const rocksdb::Slice&) override {
    return rocksdb::Status::OK();
  }
  rocksdb::Status DeleteRangeCF(uint32_t, const rocksdb::Slice&, const rocksdb::Slice&) override {
    return rocksdb::Status::OK();
  }
  void LogData(const rocksdb::Slice&) override {}

 private:
  const Visit visit_;
};

// Whether what lies behind a hole is to be read: of a process that died it was written all the
// same.
bool IsToBeReadOn(const std::string& log, const PromiseBook& book, const BootId& boot) {
  if (book.boot == boot && boot != BootId{}) return true;
  bool is_promised = false;
  Puts puts([&](uint32_t, uint64_t number, const rocksdb::Slice& value) {
    const auto promise = book.promises.find(number);
    is_promised |= promise != book.promises.end() && promise->second.HoldsUnder(boot) &&
                   ParseManifestRecord(ToView(value)).ok();
  });
  ScanLog(log, [&](absl::string_view record, uint64_t holes) {
    if (holes > 0) puts.Add(record);
  });
  return is_promised;
}

absl::Status CannotSalvage(const std::string& path, const rocksdb::Status& status) {
  const std::string text =
      absl::StrCat(path, " is damaged and cannot be salvaged: ", status.ToString());
  return status.IsNoSpace() ? absl::ResourceExhaustedError(text) : absl::UnavailableError(text);
}

absl::Status SalvageLog(rocksdb::FileSystem* files, const OldLog& log, const std::string& bytes,
                        std::vector<std::string>* found, LoggedNumbers* logged) {
  std::string anew;
  anew.reserve(bytes.size());
  Puts puts([&](uint32_t family, uint64_t number, const rocksdb::Slice&) {
    logged->emplace(family, number);
  });
  ScanLog(bytes, [&](absl::string_view record, uint64_t holes) {
    if (holes > 0 && !log.is_to_be_read_on) return;
    AppendLogRecord(record, &anew);
    puts.Add(record);
  });
  const size_t folder_end = log.path.find_last_of('/');
  const std::string lost = absl::StrCat(log.path.substr(0, folder_end), "/../lost");
  const std::string kept = absl::StrCat(lost, log.path.substr(folder_end));
  rocksdb::IOStatus status = files->CreateDirIfMissing(lost, kNoIoOptions, nullptr);
  if (status.ok() && !files->FileExists(kept, kNoIoOptions, nullptr).ok()) {
    status = files->LinkFile(log.path, kept, kNoIoOptions, nullptr);
  }
  if (!status.ok()) return CannotSalvage(log.path, status);
  if (absl::Status put = PutFile(files, log.path, anew); !put.ok()) return put;
  const LogScan& scan = log.scan;
  const bool is_whole = scan.holes == 0 && !scan.has_tail;
  found->push_back(absl::StrCat("the log ", log.path, " was damaged: ", scan.mended,
                                " flipped bits were put right, ",
                                is_whole ? "nothing is lost" : "what else was hit is lost", ", ",
                                scan.records, " records are kept; as it was it is in ", lost));
  return absl::OkStatus();
}

bool LacksSlices(const Database& db, const ObjectRecord& object) {
  return std::any_of(object.layers.begin(), object.layers.end(), [&](uint32_t layer) {
    rocksdb::PinnableSlice value;
    return GetSlice(db, SliceKey(object.number, layer), &value).IsNotFound();
  });
}

// The objects that tables hold which RocksDB was about to delete.
void AddHeldBack(const Database& db, std::set<uint64_t>* objects) {
  if (db.family(kTables) == nullptr) return;
  for (const std::string& path : db.files()->held_back()) {
    if (!absl::EndsWith(path, ".sst")) continue;
    rocksdb::Options options = db->GetOptions(db.family(kTables));
    rocksdb::SstFileReader reader(options);
    if (!reader.Open(path).ok()) continue;
    if (reader.GetTableProperties()->column_family_name != kFamilyNames[kTables]) continue;
    const std::unique_ptr<rocksdb::Iterator> it(reader.NewIterator(VerifiedReads()));
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      const absl::StatusOr<uint64_t> number = ParseNumberKey(ToView(it->key()));
      if (number.ok()) objects->insert(*number);
    }
  }
}

}  // namespace

absl::Status SalvageLogs(rocksdb::FileSystem* files, const std::string& dir, const BootId& boot,
                         std::vector<std::string>* found, LoggedNumbers* logged) {
  std::vector<OldLog> logs = LogsIn(files, DatabasePath(dir));
  std::string bytes;
  for (OldLog& log : logs) {
    if (!rocksdb::ReadFileToString(files, log.path, &bytes).ok()) continue;  // RocksDB says it
    log.scan = ScanLog(bytes, nullptr);
    if (log.scan.holes == 0) continue;
    std::string promises;
    rocksdb::ReadFileToString(files, PromisesPath(dir), &promises).PermitUncheckedError();
    log.is_to_be_read_on = IsToBeReadOn(bytes, ReadPromises(promises), boot);
  }
  for (size_t i = 0; i < logs.size(); ++i) {
    const LogScan& scan = logs[i].scan;
    // A torn end is a crash's, unless the next log goes on elsewhere: RocksDB would not read that.
    uint64_t next_begins = 0;
    for (size_t j = i + 1; j < logs.size() && next_begins == 0; ++j) {
      next_begins = logs[j].scan.first_sequence;
    }
    const bool is_cut_off = scan.has_tail && next_begins > scan.next_sequence;
    if (scan.mended == 0 && !logs[i].is_to_be_read_on && !is_cut_off) continue;
    if (logged == nullptr) {
      found->push_back(absl::StrCat("the log ", logs[i].path, " is damaged"));
      continue;
    }
    if (!rocksdb::ReadFileToString(files, logs[i].path, &bytes).ok()) continue;
    absl::Status salvaged = SalvageLog(files, logs[i], bytes, found, logged);
    if (!salvaged.ok()) return salvaged;
  }
  return absl::OkStatus();
}

absl::Status DropDoubtedObjects(const Database& db, DiskContents* contents) {
  std::set<uint64_t> doubted, manifests;
  for (const auto& [family, number] : db.logged()) {
    const auto is = [&, id = family](Family one) {
      return db.family(one) != nullptr && db.family(one)->GetID() == id;
    };
    if (is(kObjects) || is(kSlices)) doubted.insert(number);
    if (is(kManifests)) manifests.insert(number);
  }
  for (const ManifestNames& manifest : contents->manifests) {
    if (manifests.count(manifest.number) == 0) continue;
    doubted.insert(manifest.objects.begin(), manifest.objects.end());
  }
  AddHeldBack(db, &doubted);
  if (doubted.empty()) return absl::OkStatus();
  std::set<uint64_t> named;
  for (const ManifestNames& manifest : contents->manifests) {
    named.insert(manifest.objects.begin(), manifest.objects.end());
  }
  size_t lost = 0;
  auto& objects = contents->objects;
  const auto is_lost = [&](const ObjectRecord& object) {
    if (doubted.count(object.number) == 0 || !LacksSlices(db, object)) return false;
    contents->unreadable_objects.push_back(object.number);
    // Of one that no manifest names nothing was acknowledged: a publish did not come to its end.
    lost += named.count(object.number);
    return true;
  };
  objects.erase(std::remove_if(objects.begin(), objects.end(), is_lost), objects.end());
  if (lost > 0) {
    contents->damage.push_back(absl::StrCat("of ", lost, " objects there are slices lost"));
  }
  return absl::OkStatus();
}

}  // namespace hearth
