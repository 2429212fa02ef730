#include "cache_store/disk/disk_tier_salvage.h"

#include <rocksdb/sst_file_reader.h>
#include <rocksdb/table_properties.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cache_store/disk/disk_tier_tables.h"
#include "cache_store/disk/files/disk_tier_lost_folder.h"
#include "cache_store/disk/files/disk_tier_manifest.h"
#include "cache_store/disk/files/disk_tier_records.h"
#include "cache_store/disk/stored_records.h"

namespace hearth {
namespace {

// Beside a log that was written anew: no start has come to its end since, so that nobody knows yet
// what it lost.
constexpr char kUnsettled[] = ".unsettled";

struct OldLog {
  uint64_t number = 0;
  std::string path;
  LogScan scan;
  bool is_torn = false;   // RocksDB would not read on behind it, or in it
  bool ends_all = false;  // nor is it to
  bool is_unsettled = false;
};

std::vector<OldLog> LogsIn(rocksdb::FileSystem* files, const std::string& path) {
  std::vector<std::string> names;
  files->GetChildren(path, kPlain, &names, nullptr).PermitUncheckedError();
  std::vector<OldLog> logs;
  for (const std::string& name : names) {
    absl::string_view digits = name;
    uint64_t number = 0;
    if (!absl::ConsumeSuffix(&digits, ".log") || !absl::SimpleAtoi(digits, &number)) continue;
    logs.push_back({number, absl::StrCat(path, "/", name), {}});
  }
  std::sort(logs.begin(), logs.end(),
            [](const OldLog& a, const OldLog& b) { return a.number < b.number; });
  return logs;
}

// The writes of a record of a log: the family's id, the number that the key begins with, the value.
void VisitPuts(absl::string_view record,
               const std::function<void(uint32_t, uint64_t, absl::string_view)>& visit) {
  VisitBatch(record, [&](const BatchEntry& entry) {
    const absl::StatusOr<uint64_t> number = ParseNumberKey(entry.key);
    if (!entry.is_erase && number.ok()) visit(entry.family, *number, entry.value);
  });
}

// Tells which records of the logs were promised, by promises that still hold. Called in the logs'
// order.
class Held {
 public:
  Held(const PromiseBook& book, const BootId& boot) : book_(book), boot_(boot) {}

  struct InLog {
    bool any = false, behind_a_hole = false;
  };
  InLog In(const std::string& log) {
    InLog held;
    bool is_behind = false;
    const auto look = [&](uint32_t, uint64_t number, absl::string_view value) {
      const auto promise = book_.promises.find(number);
      if (promise == book_.promises.end() || !ParseManifestRecord(value).ok()) return;
      const bool is_known = !seen_.insert(number).second;
      const bool is_older = promise->second.at < first_at_.value_or(0);
      if (!is_known && !first_at_.has_value()) first_at_ = promise->second.at;
      // A manifest that is written again with a later end was promised when it was new. The
      // promises of later records lie behind those of earlier ones.
      if (is_known || is_older || !promise->second.HoldsUnder(boot_)) return;
      held.any = true;
      held.behind_a_hole |= is_behind;
    };
    ScanLog(log, [&](absl::string_view record, uint64_t holes) {
      is_behind = holes > 0;
      VisitPuts(record, look);
    });
    return held;
  }

 private:
  const PromiseBook& book_;
  const BootId boot_;
  std::set<uint64_t> seen_;
  std::optional<uint64_t> first_at_;  // of the first manifest that the logs write
};

// A machine that stops may leave holes in what was not synced. A process that dies leaves none.
bool HasMachineStopped(const PromiseBook& book, const BootId& boot) {
  return !book.LacksEntries(boot) && book.boot != BootId{} && boot != BootId{} && book.boot != boot;
}

absl::Status ReadLog(rocksdb::FileSystem* files, const OldLog& log, std::string* bytes) {
  return FromRocks(rocksdb::ReadFileToString(files, log.path, bytes),
                   absl::StrCat("read of ", log.path));
}

// Finds out where the logs end. RocksDB ends at the first that is torn. So it is to be where the
// machine stopped, unless something behind it was promised; otherwise it is damage.
absl::Status FindEnd(rocksdb::FileSystem* files, const std::string& dir, const BootId& boot,
                     std::vector<OldLog>* logs) {
  bool any = false;
  uint64_t next_begins = 0;
  for (auto log = logs->rbegin(); log != logs->rend(); ++log) {
    const LogScan& scan = log->scan;
    // RocksDB reads on behind a torn end where the next log goes on with what is due.
    log->is_torn = scan.holes > 0 || (scan.has_tail && next_begins > scan.next_sequence);
    any |= log->is_torn;
    if (scan.first_sequence > 0) next_begins = scan.first_sequence;
  }
  if (!any) return absl::OkStatus();
  std::string promises, bytes;
  rocksdb::ReadFileToString(files, PromisesPath(dir), &promises).PermitUncheckedError();
  const PromiseBook book = ReadPromises(promises);
  if (!HasMachineStopped(book, boot)) return absl::OkStatus();
  Held held(book, boot);
  std::vector<Held::InLog> promised;
  for (const OldLog& log : *logs) {
    if (absl::Status read = ReadLog(files, log, &bytes); !read.ok()) return read;
    promised.push_back(held.In(bytes));
  }
  bool is_promised_later = false;
  for (size_t i = logs->size(); i-- > 0;) {
    OldLog& log = (*logs)[i];
    log.ends_all = log.is_torn && !is_promised_later && !promised[i].behind_a_hole;
    is_promised_later |= promised[i].any;
  }
  return absl::OkStatus();
}

absl::Status CannotSalvage(const std::string& path, absl::StatusCode code, absl::string_view why) {
  return absl::Status(code, absl::StrCat(path, " is damaged and cannot be salvaged: ", why));
}

absl::Status CannotSalvage(const std::string& path, const rocksdb::Status& status) {
  return CannotSalvage(
      path,
      status.IsNoSpace() ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable,
      status.ToString());
}

void NotePuts(absl::string_view record, LoggedNumbers* logged) {
  VisitPuts(record, [logged](uint32_t family, uint64_t number, absl::string_view) {
    logged->emplace(family, number);
  });
}

absl::Status SalvageLog(rocksdb::FileSystem* files, const OldLog& log, const std::string& bytes,
                        FoundDamage* found, LoggedNumbers* logged) {
  std::string anew;
  anew.reserve(bytes.size());
  uint64_t kept_records = 0;
  ScanLog(bytes, [&](absl::string_view record, uint64_t holes) {
    if (holes > 0 && log.ends_all) return;
    AppendLogRecord(record, &anew);
    NotePuts(record, logged);
    ++kept_records;
  });
  std::string kept;
  const rocksdb::IOStatus status = LinkToLost(files, log.path, &kept);
  if (!status.ok()) return CannotSalvage(log.path, status);
  const rocksdb::Status noted =
      rocksdb::WriteStringToFile(files, "", log.path + kUnsettled, /*should_sync=*/true);
  if (!noted.ok()) return CannotSalvage(log.path, noted);
  if (absl::Status put = PutFile(files, log.path, anew); !put.ok()) {
    return CannotSalvage(log.path, put.code(), put.message());
  }
  const LogScan& scan = log.scan;
  const bool is_whole = scan.holes == 0 && !scan.has_tail;
  std::string line = absl::StrCat("the log ", log.path, " was damaged: ", scan.mended,
                                  " flipped bits were put right, ",
                                  is_whole ? "nothing is lost" : "what else was hit is lost", ", ",
                                  kept_records, " records are kept; as it was it is ", kept);
  is_whole ? found->AddMended(std::move(line)) : found->Add(std::move(line));
  return absl::OkStatus();
}

// Of a log that is only looked at.
absl::Status SayDamaged(rocksdb::FileSystem* files, const OldLog& log, FoundDamage* found) {
  std::string bytes;
  if (absl::Status read = ReadLog(files, log, &bytes); !read.ok()) return read;
  const uint64_t before = ScanLog(bytes.substr(0, log.scan.whole_bytes), nullptr).records;
  // Entries that SalvageLog would not take in.
  uint64_t left_out = 0;
  ScanLog(bytes, [&](absl::string_view, uint64_t holes) {
    if (holes > 0 && log.ends_all) ++left_out;
  });
  std::string line = absl::StrCat("the log ", log.path, " is damaged: behind that ",
                                  log.scan.records - before - left_out,
                                  " records can still be read, and the next start takes them in");
  if (left_out > 0) {
    absl::StrAppend(&line, ", but not the ", left_out,
                    " behind a hole: the machine stopped there, and none of them was promised");
  }
  found->Add(std::move(line));
  return absl::OkStatus();
}

// Whether nothing is behind it.
bool IsLast(const std::vector<OldLog>& logs, size_t log) {
  return std::all_of(logs.begin() + static_cast<ptrdiff_t>(log) + 1, logs.end(),
                     [](const OldLog& later) { return later.scan.records == 0; });
}

absl::Status KeepNames(rocksdb::FileSystem* files, const std::string& folder) {
  return FromRocks(SyncFolder(files, folder), absl::StrCat("sync of ", folder));
}

// Where the file has another name, in lost/ or in somebody's copy of the folder, what is cut off
// here is still to be had there: the bytes before it become a file of their own.
absl::Status CutOwn(rocksdb::FileSystem* files, const std::string& path, uint64_t bytes,
                    bool* is_done) {
  uint64_t names = 1;
  files->NumFileLinks(path, kPlain, &names, nullptr).PermitUncheckedError();
  *is_done = names > 1;
  if (!*is_done) return absl::OkStatus();
  std::string all;
  absl::Status status =
      FromRocks(rocksdb::ReadFileToString(files, path, &all), absl::StrCat("read of ", path));
  if (status.ok()) status = PutFile(files, path, all.substr(0, bytes));
  if (!status.ok()) {
    status = absl::Status(status.code(),
                          absl::StrCat(path, " is to end after ", bytes,
                                       " bytes, behind which nothing counts, and cannot be written "
                                       "anew: ",
                                       status.message()));
  }
  // Before any log that precedes it is cut.
  if (status.ok()) status = KeepNames(files, path.substr(0, path.find_last_of('/')));
  return status;
}

// Cuts the log to so many bytes, or only syncs it: a later stop of the machine would lose bytes
// that the dead process did not sync, from before all that is synced from now on. The part that is
// cut off must not come back, since later records may have its numbers.
absl::Status Keep(rocksdb::FileSystem* files, const std::string& path,
                  std::optional<uint64_t> bytes) {
  if (bytes.has_value()) {
    bool is_done = false;
    const absl::Status cut = CutOwn(files, path, *bytes, &is_done);
    if (!cut.ok() || is_done) return cut;
  }
  std::unique_ptr<rocksdb::FSWritableFile> file;
  rocksdb::IOStatus status =
      files->ReopenWritableFile(path, rocksdb::FileOptions(), &file, nullptr);
  if (status.ok() && bytes.has_value()) status = file->Truncate(*bytes, kPlain, nullptr);
  if (status.ok()) status = file->Fsync(kPlain, nullptr);
  if (status.ok()) status = file->Close(kPlain, nullptr);
  if (status.ok()) return absl::OkStatus();
  return FromRocks(status, absl::StrCat("sync of ", path));
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
                         FoundDamage* found, LoggedNumbers* logged) {
  std::vector<OldLog> logs = LogsIn(files, DatabasePath(dir));
  std::string bytes;
  for (OldLog& log : logs) {
    // Of one that cannot be read it is not known what the others mean: nothing is changed.
    if (absl::Status read = ReadLog(files, log, &bytes); !read.ok()) return read;
    log.scan = ScanLog(bytes, nullptr);
    log.is_unsettled = files->FileExists(log.path + kUnsettled, kPlain, nullptr).ok();
    if (!log.is_unsettled) continue;
    found->Add(
        absl::StrCat("the log ", log.path, " was damaged, and no start came to its end since"));
    if (logged == nullptr) continue;
    ScanLog(bytes, [&](absl::string_view record, uint64_t) { NotePuts(record, logged); });
  }
  if (absl::Status found_end = FindEnd(files, dir, boot, &logs); !found_end.ok()) return found_end;
  // The last first: as long as one is torn it is known that those behind it do not count.
  const auto ends_all = [](const OldLog& log) { return log.ends_all; };
  const auto end = std::find_if(logs.begin(), logs.end(), ends_all);
  for (auto log = logs.end(); logged != nullptr && end != logs.end() && --log != end;) {
    if (absl::Status cut = Keep(files, log->path, 0); !cut.ok()) return cut;
  }
  if (end != logs.end()) logs.erase(end + 1, logs.end());
  for (size_t i = 0; i < logs.size(); ++i) {
    const OldLog& log = logs[i];
    const bool is_damaged = log.scan.mended > 0 || (log.is_torn && !log.ends_all);
    const bool is_cut = log.ends_all || (log.scan.has_tail && IsLast(logs, i));
    absl::Status status;
    if (logged == nullptr) {
      if (is_damaged) status = SayDamaged(files, log, found);
    } else if (is_damaged) {
      status = ReadLog(files, log, &bytes);
      if (status.ok()) status = SalvageLog(files, log, bytes, found, logged);
    } else {
      status = Keep(files, log.path, is_cut ? std::optional(log.scan.whole_bytes) : std::nullopt);
    }
    if (!status.ok()) return status;
  }
  return logged == nullptr || logs.empty() ? absl::OkStatus() : KeepNames(files, DatabasePath(dir));
}

void SettleLogs(rocksdb::FileSystem* files, const std::string& dir) {
  for (const OldLog& log : LogsIn(files, DatabasePath(dir))) {
    files->DeleteFile(log.path + kUnsettled, kPlain, nullptr).PermitUncheckedError();
  }
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
