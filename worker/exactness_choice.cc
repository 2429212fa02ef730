#include "worker/exactness_choice.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace hearth {

absl::Status MayBeInvariant(const std::string& device, const std::string& dtype) {
  if (device != "cpu") {
    return absl::InvalidArgumentError(
        absl::StrCat("exactness: invariant is computed on the CPU, and device is ", device));
  }
  if (dtype != "auto" && dtype != "float32") {
    return absl::InvalidArgumentError(
        absl::StrCat("exactness: invariant is computed in float32, and dtype is ", dtype));
  }
  return absl::OkStatus();
}

uint64_t DefaultKvBytes() {
  uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                   static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
  for (const char* file :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    uint64_t limit = 0;  // "max" is no number
    if (std::ifstream(file) >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes / 2;
}

}  // namespace hearth
