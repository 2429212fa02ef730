// simulate --nodes: a fleet of stores that share one engine, against one store of its size.
#ifndef HEARTH_SERVICES_HEARTHCTL_COMMANDS_SIMULATE_FLEET_H_
#define HEARTH_SERVICES_HEARTHCTL_COMMANDS_SIMULATE_FLEET_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache_store/simulate/simulate.h"
#include "services/hearthctl/console.h"

namespace hearth {

struct FleetFlags {
  uint32_t nodes = 0;  // 0: no fleet
  std::string routing = "random";
  uint64_t shared_bytes = 0;  // 0: by the capacities
  double node_share = 0;

  bool is_given() const { return nodes > 0 || shared_bytes > 0 || node_share > 0; }
};

// The whole command. Returns the exit status.
int RunFleet(const FleetFlags& flags, const std::string& trace_path,
             const std::optional<ModelShape>& model, std::vector<double> capacities, bool json,
             Console& console);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_COMMANDS_SIMULATE_FLEET_H_
