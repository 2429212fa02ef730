#include "worker/exactness_choice.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// Of a machine that does not say: --kv-bytes says more.
constexpr uint64_t kUnknownMachineBytes = uint64_t{2} << 30;

}  // namespace

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
  const int64_t pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGE_SIZE);
  uint64_t bytes = kUnknownMachineBytes;
  if (pages > 0 && page_bytes > 0) {
    bytes = static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes);
  }
  for (const char* file :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    uint64_t limit = 0;  // "max" is no number
    if (std::ifstream(file) >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes / 2;
}

}  // namespace hearth
