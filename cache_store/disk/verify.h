// VerifyDataDir: checks all manifests, objects and slices of a store's data folder, and the saved
// count of restore points.
//
// Only reads the folder, and needs no secret. A running store may use the folder, but its writes
// may then appear as problems. Wrong data is read again after a pause, without the page cache. If
// two reads give the same wrong bytes, it is a problem; otherwise it is a misread, caused by the
// disk or its cable.
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
  // Limit of problems that the report describes, to bound memory. Further problems are only
  // counted.
  static constexpr size_t kMaxNamedProblems = 100;

  uint64_t restore_points = 0;
  uint64_t objects = 0;
  uint64_t slices = 0;
  uint64_t slice_bytes = 0;
  uint64_t unreferenced_objects = 0;  // not a problem: the next start erases such objects
  // acknowledged restore points that are missing; together they count as one problem
  uint64_t missing_points = 0;
  uint64_t problem_count = 0;
  std::vector<std::string> problems;
  uint64_t misread_count = 0;  // reads that gave wrong data only once; not counted as problems
  std::vector<std::string> misreads;
  bool ok() const { return problem_count == 0; }
};

struct VerifyOptions {
  rocksdb::Env* env = nullptr;  // for tests: wraps the file system
  // For tests: replaces the pauses before repeated reads. Null: sleeps.
  std::function<void(absl::Duration)> wait;
};

// Verifies the data folder; the report lists the damage. kFailedPrecondition: the folder does not
// exist, or has another format. kUnavailable: each read of the database gives another result.
absl::StatusOr<VerifyReport> VerifyDataDir(const std::string& dir,
                                           const VerifyOptions& options = {});

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_VERIFY_H_
