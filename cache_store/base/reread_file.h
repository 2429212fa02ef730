// Reread: a value read from files, read again after one of the files changes. RereadFile: a text.
//
// Thread safety: all methods from any thread. Ownership: objects that `report` uses outlive this
// one. Invariants: (1) unusable files, such as a half-written file, leave the last good value in
// place; (2) each change to unusable files is reported once.
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

// Receives the error when files cannot be used and the previous value is kept. May be null.
using FileReport = std::function<void(const absl::Status&)>;

template <typename T>
class Reread {
 public:
  using Read = std::function<absl::StatusOr<T>()>;

  Reread(std::vector<std::string> paths, Read read, FileReport report)
      : paths_(std::move(paths)), read_(std::move(read)), report_(std::move(report)) {}

  // Returns the value from the last usable files, or an error if no files were usable yet.
  absl::StatusOr<T> Get() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::ReleasableMutexLock lock(&mutex_);
    // Take the stamps before reading, so that a change during the read counts as a later change.
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
