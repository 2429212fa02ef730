// Offline check of a store's data folder: every manifest, every object, every slice's bytes, and
// the count of restore points.
//
// Only reads, and needs no secret. May run on a folder that a store has open, though writes in
// progress can then show as problems. What is wrong is read again after a pause, past the page
// cache: only the same wrong bytes twice in a row are a problem. What reads right or otherwise
// wrong then is a misread: the disk's fault, or its cable's.
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
  // More are counted, not named: a broken folder should not fill the memory.
  static constexpr size_t kMaxNamedProblems = 100;

  uint64_t restore_points = 0;
  uint64_t objects = 0;
  uint64_t slices = 0;
  uint64_t slice_bytes = 0;
  uint64_t unreferenced_objects = 0;  // no problem: the next start collects them
  uint64_t missing_points = 0;        // acknowledged, and not there: one problem for all
  uint64_t problem_count = 0;
  std::vector<std::string> problems;
  uint64_t misread_count = 0;  // no problems
  std::vector<std::string> misreads;
  bool ok() const { return problem_count == 0; }
};

struct VerifyOptions {
  rocksdb::Env* env = nullptr;  // a test's, in front of the file system
  // A test's, for the pauses before it reads again; null: it sleeps.
  std::function<void(absl::Duration)> wait;
};

// kFailedPrecondition: no such folder, or another format. Corruption is in the report.
// kUnavailable: the database reads differently each time.
absl::StatusOr<VerifyReport> VerifyDataDir(const std::string& dir,
                                           const VerifyOptions& options = {});

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_VERIFY_H_
