// RereadFile: a text that is kept in a file, read again once the file has changed.
//
// Thread safety: all methods from any thread. Ownership: what is reported to outlives it.
// Invariants: (1) a file that cannot be used, such as one that is half written, changes nothing
// that worked; (2) it is reported once for each of its changes.
#ifndef HEARTH_CACHE_STORE_BASE_REREAD_FILE_H_
#define HEARTH_CACHE_STORE_BASE_REREAD_FILE_H_

#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace hearth {

// Told of a file that cannot be used, and that the one before it is used on. May be null.
using FileReport = std::function<void(const absl::Status&)>;

class RereadFile {
 public:
  using Read = std::function<absl::StatusOr<std::string>(const std::string& path)>;

  RereadFile(std::string path, Read read, FileReport report)
      : path_(std::move(path)), read_(std::move(read)), report_(std::move(report)) {}

  // The text of the last file that could be used; an error until there was one.
  absl::StatusOr<std::string> Text() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const std::string path_;
  const Read read_;
  const FileReport report_;
  absl::Mutex mutex_;
  std::string stamp_ ABSL_GUARDED_BY(mutex_);  // of the file that was read last
  bool has_text_ ABSL_GUARDED_BY(mutex_) = false;
  std::string text_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_REREAD_FILE_H_
