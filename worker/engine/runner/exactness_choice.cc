#include "worker/engine/runner/exactness_choice.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/device/open_device.h"

namespace hearth {
namespace {

// Memory assumed if the machine does not report it. --kv-bytes overrides the budget derived from
// it.
constexpr uint64_t kUnknownMachineBytes = uint64_t{2} << 30;

}  // namespace

absl::Status CheckInvariantDtype(const std::string& dtype) {
  if (dtype != "auto" && dtype != "float32") {
    return absl::InvalidArgumentError(
        absl::StrCat("exactness: invariant needs dtype float32 or auto; got dtype ", dtype));
  }
  return absl::OkStatus();
}

absl::Status CheckAutoInvariant(const std::string& device, const std::string& dtype) {
  if (device != "cpu" && device != kEmulatedDevice) {
    return absl::InvalidArgumentError(
        absl::StrCat("exactness: auto chooses invariant only on the CPU, and device is ", device,
                     ": --exactness invariant computes the bits of the CPU on this device"));
  }
  return CheckInvariantDtype(dtype);
}

absl::Status SelfTestFailure(const absl::Status& status) {
  const char* what = absl::IsFailedPrecondition(status) ? "does not hold" : "could not be tested";
  return {status.code(), absl::StrCat("exactness: invariant ", what, " on this machine: ",
                                      status.message(), "; use --exactness exact")};
}

const char* WeightsChoiceName(WeightsChoice weights) {
  constexpr const char* kNames[] = {"auto", "float32", "stored", "q8_0", "q4_0"};
  static_assert(std::size(kNames) == static_cast<size_t>(WeightsChoice::kCount), "one name each");
  return kNames[static_cast<int>(weights)];
}

const char* ArithmeticChoiceName(ArithmeticChoice arithmetic) {
  constexpr const char* kNames[] = {"float32", "int8", "bf16", "auto"};
  static_assert(std::size(kNames) == static_cast<size_t>(ArithmeticChoice::kCount),
                "one name each");
  return kNames[static_cast<int>(arithmetic)];
}

absl::Status CheckFlag(const std::string& flag, const std::string& value, ExactnessChoice exactness,
                       const std::string& dtype) {
  const std::string leave = absl::StrCat("leave --", flag, " at auto");
  if (exactness == ExactnessChoice::kExact || exactness == ExactnessChoice::kPortable) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": ", value, " needs exactness invariant, and exactness is ",
                     exactness == ExactnessChoice::kExact ? "exact" : "portable",
                     ", which uses --dtype for weights, products, keys and values: ", leave,
                     ", or --exactness at auto"));
  }
  if (dtype != "auto" && dtype != "float32") {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, ": ", value, " needs exactness invariant, which needs dtype float32, and dtype is ",
        dtype, ": ", leave, ", or --dtype at auto"));
  }
  return absl::OkStatus();
}

uint64_t MemoryBytes(const std::string& root) {
  const int64_t pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGE_SIZE);
  uint64_t bytes = kUnknownMachineBytes;
  if (pages > 0 && page_bytes > 0) {
    bytes = static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes);
  }
  const auto limit = [&](const std::string& file) {
    uint64_t limit_bytes = 0;  // unchanged if the file contains "max" (no limit)
    if (std::ifstream(file) >> limit_bytes && limit_bytes > 0) bytes = std::min(bytes, limit_bytes);
  };
  limit(root + "/sys/fs/cgroup/memory/memory.limit_in_bytes");  // cgroup version 1
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string group;  // path for cgroup version 2, such as "0::/system.slice/hearth.service"
  for (std::string line; std::getline(groups, line);) {
    if (absl::StartsWith(line, "0::/")) group = line.substr(3);
  }
  for (;;) {
    limit(absl::StrCat(root, "/sys/fs/cgroup", group, "/memory.max"));
    if (group.empty()) return bytes;
    group.resize(group.rfind('/'));
  }
}

uint64_t DefaultKvBytes(uint64_t memory_bytes, uint64_t weights_bytes, uint64_t pool_bytes) {
  const uint64_t others = weights_bytes + pool_bytes, half = memory_bytes / 2;
  const uint64_t left = memory_bytes - std::min(memory_bytes, others);
  return std::max(half - std::min(half, others), left / 4);
}

}  // namespace hearth
