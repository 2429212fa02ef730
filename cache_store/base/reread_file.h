// Reread: what is made of files, made again once one of them has changed. RereadFile: a text.
//
// Thread safety: all methods from any thread. Ownership: what is reported to outlives it.
// Invariants: (1) files that cannot be used, such as one that is half written, change nothing that
// worked; (2) that is reported once for each of their changes.
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

// Told of files that cannot be used, and that those before them are used on. May be null.
using FileReport = std::function<void(const absl::Status&)>;

template <typename T>
class Reread {
 public:
  using Read = std::function<absl::StatusOr<T>()>;

  Reread(std::vector<std::string> paths, Read read, FileReport report)
      : paths_(std::move(paths)), read_(std::move(read)), report_(std::move(report)) {}

  // What the last files that could be used gave; an error until there were some.
  absl::StatusOr<T> Get() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::ReleasableMutexLock lock(&mutex_);
    // Before they are read: what changes after that is another change.
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
  std::vector<std::string> stamps_ ABSL_GUARDED_BY(mutex_);  // of the files that were read last
  std::optional<T> value_ ABSL_GUARDED_BY(mutex_);
};

using RereadFile = Reread<std::string>;

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_REREAD_FILE_H_
