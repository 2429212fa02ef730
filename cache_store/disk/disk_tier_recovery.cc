#include "cache_store/disk/disk_tier_recovery.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_store/disk/disk_tier_tables.h"
#include "cache_store/disk/stored_records.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

// Time limit of the child process. Opening all tables of 64 GiB took 10 s.
constexpr unsigned kChildSeconds = 300;
constexpr int kExitMisread = 3;
// A log that discards all lines. The child cannot use the parent's log, which another thread may
// have locked at the fork; without any log, RocksDB would create a log file.
class NoLog : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

// Runs RocksDB's best-efforts recovery, whose result is in RocksDB's manifest on return. noexcept:
// an exception ends the child process and does not reach the parent's code.
bool Recover(rocksdb::DBOptions options, const std::string& path,
             std::vector<rocksdb::ColumnFamilyDescriptor> families) noexcept {
  // Use one thread, because the forked child has none of RocksDB's threads.
  options.max_file_opening_threads = 1;
  options.stats_dump_period_sec = options.stats_persist_period_sec = 0;
  options.info_log = std::make_shared<NoLog>();
  options.create_if_missing = options.create_missing_column_families = false;
  options.best_efforts_recovery = true;
  options.listeners.clear();
  for (rocksdb::ColumnFamilyDescriptor& family : families) {
    family.options.disable_auto_compactions = true;
  }
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  return rocksdb::DB::Open(options, path, families, &handles, &db).ok();
}

fs::path AsidePath(const std::string& dir) { return dir + "/db.damaged"; }

}  // namespace

absl::Status RecoverInChild(const rocksdb::DBOptions& options, const std::string& path,
                            const std::vector<rocksdb::ColumnFamilyDescriptor>& families,
                            const RecoveryFileSystem& files) {
  std::signal(SIGCHLD, SIG_DFL);  // while SIGCHLD is ignored, waitpid returns no exit status
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) {
    return absl::UnavailableError(absl::StrCat("cannot start a process to repair the database: ",
                                               std::strerror(errno), "; start the store again"));
  }
  if (child == 0) {
    // End the child when its parent ends, because the child holds the lock of the database.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    // Reset the parent's signal handlers, which would report that the store's start failed.
    for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGALRM}) std::signal(number, SIG_DFL);
    std::set_terminate(&std::abort);
    ::alarm(kChildSeconds);
    // Exit at the first read that fails or differs, because RocksDB may then assert, or retry for
    // minutes.
    files.ExitAtFailure(kExitMisread);
    // Exit without closing the database, which would wait for threads that the child does not have.
    const bool is_recovered = Recover(options, path, families);
    ::_exit(!files.failure().empty() ? kExitMisread : is_recovered ? 0 : 1);
  }
  int status = -1;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  if (WIFEXITED(status) && WEXITSTATUS(status) == kExitMisread) {
    return absl::AbortedError("a read failed, or two reads differed, during RocksDB's repair");
  }
  return absl::DataLossError("RocksDB cannot repair the database");
}

void FindLostTables(const Database& db, DiskContents* contents) {
  std::vector<rocksdb::LiveFileMetaData> files;
  db->GetLiveFilesMetaData(&files);
  for (const rocksdb::LiveFileMetaData& file : files) {
    const bool is_table = file.column_family_name == kFamilyNames[kTables];
    if (!is_table && file.column_family_name != kFamilyNames[kSlices]) continue;
    const std::string path = absl::StrCat(db->GetName(), "/", file.relative_filename);
    uint64_t bytes = 0;
    const rocksdb::Status found = db->GetEnv()->GetFileSize(path, &bytes);
    if (found.ok() ? bytes == file.size : !found.IsPathNotFound()) continue;
    const uint64_t first = ParseNumberKey(file.smallestkey).value_or(0);
    const uint64_t last = ParseNumberKey(file.largestkey).value_or(0);
    contents->damage.push_back(absl::StrCat("table ", path, ", object numbers ", first, " to ",
                                            last, found.ok() ? ", was truncated" : ", is missing",
                                            "; its entries are lost"));
    // RocksDB also looks for the old name 000001.ldb.
    const std::string name =
        absl::StrCat("/", file.relative_filename.substr(0, file.relative_filename.find('.') + 1));
    bool is_known = true;
    // Decide for each object: other tables may have numbers in the same range. A read error of
    // another table is no loss: later reads decide about its object.
    const auto is_lost = [&](const ObjectRecord& object) {
      if (object.number < first || object.number > last || object.in_table != is_table)
        return false;
      for (const uint32_t layer : object.layers) {
        rocksdb::PinnableSlice value;
        const StoredSlice slice{object.number, layer, 0, 0, object.in_table};
        const rocksdb::Status read = GetSlice(db, slice, &value);
        if (read.ok()) continue;
        if (read.IsNotFound() || absl::StrContains(read.ToString(), name)) {
          contents->unreadable_objects.push_back(object.number);
          return true;
        }
        is_known = false;
      }
      return false;
    };
    auto& objects = contents->objects;
    objects.erase(std::remove_if(objects.begin(), objects.end(), is_lost), objects.end());
    // Delete the truncated table, so that the next start does not report it again.
    if (is_known) db->DeleteFile(file.name).PermitUncheckedError();
  }
}

absl::Status SetAside(const std::string& dir, const std::string& why,
                      std::vector<std::string>* lines) {
  const fs::path to = AsidePath(dir);
  std::error_code error;
  fs::remove_all(to, error);
  fs::rename(DatabasePath(dir), to, error);
  if (error) {
    return absl::DataLossError(absl::StrCat(DatabasePath(dir), " cannot be renamed to ",
                                            to.string(), ": ", error.message()));
  }
  fs::last_write_time(to, fs::file_time_type::clock::now(), error);
  lines->push_back(absl::StrCat("the database cannot be opened: ", why, "; it was moved to ",
                                to.string(),
                                ", kept there for a week, and the store begins with an empty one"));
  return absl::OkStatus();
}

uint64_t DatabaseBytes(const std::string& dir) {
  uint64_t sum = 0;
  std::error_code error;
  for (const fs::path& path : {fs::path(DatabasePath(dir)), AsidePath(dir)}) {
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
      const uint64_t bytes = it->file_size(error);
      sum += error ? 0 : bytes;  // a file with an error was just deleted
    }
  }
  return sum;
}

void RemoveSetAside(const std::string& dir, absl::Duration age) {
  std::error_code error;
  const auto since = fs::last_write_time(AsidePath(dir), error);
  if (error || fs::file_time_type::clock::now() - since < absl::ToChronoSeconds(age)) return;
  fs::remove_all(AsidePath(dir), error);
}

}  // namespace hearth
