// Offline check of a store's data folder: every manifest, every object, every slice's bytes, and
// the count of restore points.
//
// Only reads, and needs no secret. May run on a folder that a store has open, though writes in
// progress can then show as problems. Pure function of the folder.
#ifndef HEARTH_CACHE_STORE_DISK_VERIFY_H_
#define HEARTH_CACHE_STORE_DISK_VERIFY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

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
  bool ok() const { return problem_count == 0; }
};

// kFailedPrecondition: no such folder, or another format. Corruption is in the report.
absl::StatusOr<VerifyReport> VerifyDataDir(const std::string& dir);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_VERIFY_H_
