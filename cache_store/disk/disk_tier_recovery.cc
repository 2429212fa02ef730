#include "cache_store/disk/disk_tier_recovery.h"

#include <rocksdb/convenience.h>
#include <rocksdb/sst_file_reader.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "cache_store/disk/stored_records.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

constexpr char kAsidePrefix[] = "db.damaged-";
// Opening every table of 64 GiB took 10 s.
constexpr unsigned kChildSeconds = 300;
constexpr size_t kMaxSaidBytes = 4096;  // of a pipe, written at once

std::string NumbersOf(const rocksdb::LiveFileMetaData& file) {
  const absl::StatusOr<uint64_t> first = ParseNumberKey(file.smallestkey);
  const absl::StatusOr<uint64_t> last = ParseNumberKey(file.largestkey);
  if (!first.ok() || !last.ok()) return "";
  return absl::StrCat(", numbers ", *first, " to ", *last);
}

// The parent's log may be locked by one of its other threads, which the child has not; and without
// one RocksDB makes a file.
class NoLog : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

rocksdb::Status OpenWith(const rocksdb::DBOptions& options, const std::string& path,
                         const std::vector<rocksdb::ColumnFamilyDescriptor>& families,
                         std::vector<rocksdb::ColumnFamilyHandle*>* handles, rocksdb::DB** db) {
  handles->clear();
  rocksdb::DBOptions child = options;
  // The child has none of RocksDB's threads.
  child.max_file_opening_threads = 1;
  child.stats_dump_period_sec = child.stats_persist_period_sec = 0;
  child.info_log = std::make_shared<NoLog>();
  child.create_if_missing = child.create_missing_column_families = false;
  child.paranoid_checks = false;  // a table that cannot be opened is found below
  child.listeners.clear();
  std::vector<rocksdb::ColumnFamilyDescriptor> idle = families;
  for (rocksdb::ColumnFamilyDescriptor& family : idle) {
    family.options.disable_auto_compactions = true;
  }
  return rocksdb::DB::Open(child, path, idle, handles, db);
}

// Drops the tables of slices that cannot be opened. False: one of another family cannot, which
// slices and restore points are found by.
bool DropLostTables(const rocksdb::DBOptions& options, rocksdb::DB* db,
                    const std::vector<rocksdb::ColumnFamilyHandle*>& handles, std::string* said) {
  std::vector<rocksdb::LiveFileMetaData> files;
  std::set<std::string> named;  // or left
  db->GetLiveFilesMetaData(&files);
  const rocksdb::Options any(options, rocksdb::ColumnFamilyOptions());
  for (const rocksdb::LiveFileMetaData& file : files) {
    const std::string table = absl::StrCat(db->GetName(), "/", file.relative_filename);
    uint64_t bytes = 0;
    rocksdb::Status tried = options.env->GetFileSize(table, &bytes);
    if (tried.ok() && bytes != file.size) tried = rocksdb::Status::Corruption("it was cut");
    if (tried.ok()) tried = rocksdb::SstFileReader(any).Open(table);
    if (tried.ok()) continue;
    if (file.column_family_name != kFamilyNames[kTables] || file.level == 0) return false;
    const rocksdb::Slice first(file.smallestkey), last(file.largestkey);
    const rocksdb::RangePtr range(&first, &last);
    // That one alone where it lies in the last level, as most do.
    rocksdb::Status dropped = db->DeleteFile(file.name);
    if (!dropped.ok()) {
      dropped = rocksdb::DeleteFilesInRanges(db, handles[kTables], &range, 1, /*include_end=*/true);
    }
    if (!dropped.ok()) return false;
    named.insert(file.name);
    absl::StrAppend(said, "table ", table, NumbersOf(file), " cannot be opened: ", tried.ToString(),
                    "; what it held is lost\n");
  }
  std::vector<rocksdb::LiveFileMetaData> left;
  db->GetLiveFilesMetaData(&left);
  for (const rocksdb::LiveFileMetaData& file : left) named.insert(file.name);
  for (const rocksdb::LiveFileMetaData& file : files) {
    if (named.count(file.name) > 0) continue;
    absl::StrAppend(said, "table ", file.relative_filename, NumbersOf(file),
                    " lay among the numbers of one that cannot be opened, and is lost with it\n");
  }
  return true;
}

bool Recover(rocksdb::DBOptions options, const std::string& path,
             const std::vector<rocksdb::ColumnFamilyDescriptor>& families, std::string* said) {
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  rocksdb::Status status = OpenWith(options, path, families, &handles, &db);
  if (status.ok()) return DropLostTables(options, db, handles, said);
  options.best_efforts_recovery = true;
  status = OpenWith(options, path, families, &handles, &db);
  if (!status.ok()) return false;
  *said = absl::StrCat(
      "the database's manifest was damaged: RocksDB went back to the newest state "
      "that is whole\n");
  return DropLostTables(options, db, handles, said);
}

uint64_t TimeOf(const fs::path& path) {
  const std::string name = path.filename().string();
  absl::string_view digits = name;
  uint64_t unix_s = 0;
  return absl::ConsumePrefix(&digits, kAsidePrefix) && absl::SimpleAtoi(digits, &unix_s) ? unix_s
                                                                                         : 0;
}

std::vector<fs::path> AsideIn(const std::string& dir) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    if (TimeOf(it->path()) > 0) found.push_back(it->path());
  }
  return found;
}

}  // namespace

absl::Status RecoverInChild(const rocksdb::DBOptions& options, const std::string& path,
                            const std::vector<rocksdb::ColumnFamilyDescriptor>& families,
                            std::vector<std::string>* lines) {
  int ends[2];
  if (::pipe(ends) != 0) {
    return absl::UnavailableError(absl::StrCat(
        "no pipe to a process that mends the database: ", std::strerror(errno), "; start again"));
  }
  std::signal(SIGCHLD, SIG_DFL);  // ignored, it would keep the child's status from its parent
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    // It holds the database's lock: it does not outlive a parent that is told to stop.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    for (const int number : {SIGABRT, SIGSEGV, SIGALRM}) std::signal(number, SIG_DFL);
    ::alarm(kChildSeconds);
    std::string said;
    const bool is_mended = Recover(options, path, families, &said);
    if (said.size() > kMaxSaidBytes) said = said.substr(0, said.rfind('\n', kMaxSaidBytes) + 1);
    const bool is_said = ::write(ends[1], said.data(), said.size()) >= 0;
    // Not closed: what it did is in RocksDB's manifest, and the rest of the process is not there.
    ::_exit(is_mended && is_said ? 0 : 1);
  }
  const std::string why_no_child = child < 0 ? std::strerror(errno) : "";
  ::close(ends[1]);
  std::string said;
  char buffer[kMaxSaidBytes];
  ssize_t count = 0;
  while (child > 0 &&
         ((count = ::read(ends[0], buffer, sizeof(buffer))) > 0 || (count < 0 && errno == EINTR))) {
    if (count > 0) said.append(buffer, static_cast<size_t>(count));
  }
  ::close(ends[0]);
  if (child < 0) {
    return absl::UnavailableError(
        absl::StrCat("no process that mends the database: ", why_no_child, "; start again"));
  }
  int status = -1;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return absl::DataLossError("RocksDB cannot mend the database");
  }
  for (const absl::string_view line : absl::StrSplit(said, '\n', absl::SkipEmpty())) {
    lines->emplace_back(line);
  }
  return absl::OkStatus();
}

void TakeLostObjects(const Database& db, DiskContents* contents) {
  rocksdb::ColumnFamilyMetaData family;
  db->GetColumnFamilyMetaData(db.family(kTables), &family);
  std::map<std::string, std::string> ranges;  // of keys that some table spans: first, last
  for (const rocksdb::LevelMetaData& level : family.levels) {
    for (const rocksdb::SstFileMetaData& file : level.files) {
      std::string& last = ranges[file.smallestkey];
      last = std::max(last, file.largestkey);
    }
  }
  std::string reach;  // of those before it, which may overlap it
  for (auto& [first, last] : ranges) last = reach = std::max(reach, last);
  const auto is_spanned = [&](const std::string& key) {
    const auto after = ranges.upper_bound(key);
    return after != ranges.begin() && key <= std::prev(after)->second;
  };
  const auto is_lost = [&](const ObjectRecord& object) {
    const bool is_whole =
        !object.in_table ||
        std::all_of(object.layers.begin(), object.layers.end(),
                    [&](uint32_t layer) { return is_spanned(SliceKey(object.number, layer)); });
    if (!is_whole) contents->unreadable_objects.push_back(object.number);
    return !is_whole;
  };
  auto& objects = contents->objects;
  objects.erase(std::remove_if(objects.begin(), objects.end(), is_lost), objects.end());
}

absl::Status SetAside(const std::string& dir, const std::string& why,
                      std::vector<std::string>* lines) {
  const std::vector<fs::path> older = AsideIn(dir);
  const std::string to = absl::StrCat(dir, "/", kAsidePrefix, absl::ToUnixSeconds(absl::Now()));
  std::error_code error;
  for (const fs::path& one : older) fs::remove_all(one, error);
  fs::rename(DatabasePath(dir), to, error);
  if (error) {
    return absl::DataLossError(
        absl::StrCat(DatabasePath(dir), " cannot be renamed to ", to, ": ", error.message()));
  }
  lines->push_back(absl::StrCat("the database cannot be opened: ", why, "; it is set aside as ", to,
                                " for a week, and the store begins with an empty one"));
  return absl::OkStatus();
}

uint64_t SetAsideBytes(const std::string& dir) {
  uint64_t sum = 0;
  std::error_code error;
  for (const fs::path& aside : AsideIn(dir)) {
    for (fs::directory_iterator it(aside, error), end; !error && it != end; it.increment(error)) {
      const uint64_t bytes = it->file_size(error);
      if (!error) sum += bytes;
    }
  }
  return sum;
}

void RemoveSetAside(const std::string& dir, absl::Duration age) {
  const auto oldest = static_cast<uint64_t>(absl::ToUnixSeconds(absl::Now() - age));
  std::error_code error;
  for (const fs::path& aside : AsideIn(dir)) {
    if (TimeOf(aside) <= oldest) fs::remove_all(aside, error);
  }
}

}  // namespace hearth
