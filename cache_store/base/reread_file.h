// Reread: a value that is read from files, and read again when a file has changed. RereadFile: a
// text read in this way.
//
// Thread safe. Ownership: objects that `report` uses outlive this object. Invariants: (1) while the
// files cannot be used (such as a half-written file), the last good value stays; (2) each change to
// unusable files is reported once.
#ifndef HEARTH_CACHE_STORE_BASE_REREAD_FILE_H_
#define HEARTH_CACHE_STORE_BASE_REREAD_FILE_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "cache_store/base/regular_file.h"

namespace hearth {

// Receives the error if changed files cannot be used and the previous value stays in use. May be
// null.
using FileReport = std::function<void(const absl::Status&)>;

template <typename T>
class Reread {
 public:
  using Read = std::function<absl::StatusOr<T>()>;

  Reread(std::vector<std::string> paths, Read read, FileReport report)
      : paths_(std::move(paths)), read_(std::move(read)), report_(std::move(report)) {}

  // Returns the value of the last usable files; an error if the files were never usable.
  absl::StatusOr<T> Get() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::ReleasableMutexLock lock(&mutex_);
    // Take the files' stamps before reading them, so that a change during the read is noticed by
    // the next call.
    std::vector<std::string> stamps;
    for (const std::string& path : paths_) stamps.push_back(FileStampOf(path));
    if (value_.has_value() && stamps == stamps_) return *value_;
    stamps_ = std::move(stamps);
    absl::StatusOr<T> read = read_();
    if (read.ok()) value_ = *read;
    if (!value_.has_value()) return read.status();
    const T value = *value_;
    lock.Release();
    if (!read.ok() && report_ != nullptr) report_(read.status());
    return value;
  }

 private:
  const std::vector<std::string> paths_;
  const Read read_ ABSL_GUARDED_BY(mutex_);
  const FileReport report_;
  absl::Mutex mutex_;
  // stamps of the files as they were read last
  std::vector<std::string> stamps_ ABSL_GUARDED_BY(mutex_);
  std::optional<T> value_ ABSL_GUARDED_BY(mutex_);
};

using RereadFile = Reread<std::string>;

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_REREAD_FILE_H_
