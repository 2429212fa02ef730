// Offline check of a store's data folder: every manifest, object and slice, and the count of
// restore points.
//
// Reads only, and needs no secret. The folder may be open in a store, but concurrent writes can
// then show up as problems. Wrong data is read again after a pause, without the page cache: only
// the same wrong bytes twice in a row are a problem. A result that differs is a misread: a fault of
// the disk or its cable.
#ifndef HEARTH_CACHE_STORE_DISK_VERIFY_H_
#define HEARTH_CACHE_STORE_DISK_VERIFY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace rocksdb {
class Env;
}

namespace hearth {

struct VerifyReport {
  // Further problems are counted, not named, to limit memory.
  static constexpr size_t kMaxNamedProblems = 100;

  uint64_t restore_points = 0;
  uint64_t objects = 0;
  uint64_t slices = 0;
  uint64_t slice_bytes = 0;
  uint64_t unreferenced_objects = 0;  // not a problem: the next start erases them
  uint64_t missing_points = 0;        // acknowledged but missing: together one problem
  uint64_t problem_count = 0;
  std::vector<std::string> problems;
  uint64_t misread_count = 0;  // not problems
  std::vector<std::string> misreads;
  bool ok() const { return problem_count == 0; }
};

struct VerifyOptions {
  rocksdb::Env* env = nullptr;  // tests: wraps the file system
  // Tests: replaces the pauses before reading again; null: sleep.
  std::function<void(absl::Duration)> wait;
};

// kFailedPrecondition: no such folder, or another format. kUnavailable: each read of the database
// gives another result. The report lists corruption.
absl::StatusOr<VerifyReport> VerifyDataDir(const std::string& dir,
                                           const VerifyOptions& options = {});

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_VERIFY_H_
