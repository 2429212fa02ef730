// DatabaseLog takes RocksDB's own log; RotIsNoReasonToStop lets it write on after background
// errors. Private to disk/.
//
// Never a file: RocksDB writes its own log beside the data, and Debian's build asserts after a
// write to it that failed, as every write on a full disk does. Thread safe.
#ifndef HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_LOG_H_
#define HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_LOG_H_

#include <rocksdb/env.h>
#include <rocksdb/listener.h>

#include <cstdarg>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cache_store/base/warnings.h"

namespace hearth {

// Its warnings and errors, as lines of ours.
class DatabaseLog : public rocksdb::Logger {
 public:
  // `warnings` may be null.
  explicit DatabaseLog(std::shared_ptr<Warnings> warnings)
      : Logger(rocksdb::InfoLogLevel::WARN_LEVEL), warnings_(std::move(warnings)) {}

  void LogHeader(const char*, va_list) override {}
  void Logv(const char*, va_list) override {}
  void Logv(rocksdb::InfoLogLevel level, const char* format, va_list arguments) override;

  // Reports of logs that are damaged other than at their very end, which is what a crash
  // leaves: of these RocksDB opens what comes before and says no more than this.
  std::vector<std::string> dropped() const {
    absl::MutexLock lock(&mu_);
    return dropped_;
  }

 private:
  const std::shared_ptr<Warnings> warnings_;
  mutable absl::Mutex mu_;
  std::vector<std::string> dropped_ ABSL_GUARDED_BY(mu_);
};

// A compaction that meets rot gives up and leaves everything as it is. RocksDB would refuse all
// writes from then on, and after the next start again: one flipped bit would end the store.
class RotIsNoReasonToStop : public rocksdb::EventListener {
 public:
  void OnBackgroundError(rocksdb::BackgroundErrorReason reason, rocksdb::Status* error) override {
    const bool only_reads = reason == rocksdb::BackgroundErrorReason::kCompaction;
    if (only_reads && error->IsCorruption()) *error = rocksdb::Status::OK();
  }
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_LOG_H_
