#include "cache_store/base/reread_file.h"

#include <utility>

#include "cache_store/base/file_stamp.h"

namespace hearth {

absl::StatusOr<std::string> RereadFile::Text() {
  absl::Status unusable;
  std::string text;
  {
    absl::MutexLock lock(&mutex_);
    // Before it is read: what changes after that is another change.
    std::string stamp = FileStampOf(path_);
    if (has_text_ && stamp == stamp_) return text_;
    stamp_ = std::move(stamp);
    absl::StatusOr<std::string> read = read_(path_);
    if (!read.ok() && !has_text_) return read.status();
    if (read.ok()) {
      has_text_ = true;
      text_ = *std::move(read);
    } else {
      unusable = read.status();
    }
    text = text_;
  }
  if (!unusable.ok() && report_ != nullptr) report_(unusable);
  return text;
}

}  // namespace hearth
