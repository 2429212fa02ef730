// PointChoice: which restore points are listed, and in which order.
//
// Thread safety: none.
#ifndef HEARTH_SERVICES_HEARTHCTL_POINT_CHOICE_H_
#define HEARTH_SERVICES_HEARTHCTL_POINT_CHOICE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cache_store.pb.h"

namespace hearth {

class CommandFlags;

class PointChoice {
 public:
  // --sort, --limit, --filter.
  void Declare(CommandFlags* command);
  // Sorts `points` and drops those that are not wanted. Returns how many of the wanted ones are
  // beyond the limit. REQUIRES: Parse took the flags.
  size_t Apply(std::vector<v1::RestorePointInfo>* points) const;

 private:
  std::string sort_ = "age";
  uint32_t limit_ = 0;
  std::vector<std::string> filters_;
};

using PointFilter = std::function<bool(const v1::RestorePointInfo&)>;
// Of "tokens>1000", "tier=disk", "age<10m", "bytes>=1MiB", "pinned=yes", "id=3fa9".
// kInvalidArgument says what is valid.
absl::StatusOr<PointFilter> ParsePointFilter(const std::string& text);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_POINT_CHOICE_H_
