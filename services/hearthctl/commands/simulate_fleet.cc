#include "services/hearthctl/commands/simulate_fleet.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cache_store/simulate/fleet.h"
#include "services/hearthctl/json_text.h"

namespace hearth {
namespace {

constexpr uint32_t kMaxNodes = 1000;

struct FleetRow {
  double capacity = 0;  // of the engine, as a share of the trace's unique blocks
  FleetRates fleet;
  double lru = 0, learnt = 0;  // of one store of the engine's size
};

double Rounded(double rate) { return std::round(rate * 1e6) / 1e6; }

Json ToJson(const FleetRow& row, const FleetFlags& flags) {
  return Json{{"nodes", flags.nodes},
              {"routing", flags.routing},
              {"capacity", row.capacity},
              {"node_share", flags.node_share},
              {"hit_rate", Rounded(row.fleet.found)},
              {"shared_hit_rate", Rounded(row.fleet.shared)},
              {"lru_hit_rate", Rounded(row.lru)},
              {"default_hit_rate", Rounded(row.learnt)}};
}

double Ratio(double part, double of) { return of > 0 ? part / of : 0; }

std::string ToText(const FleetRow& row) {
  return absl::StrFormat("  %6.4g %%     %.4f   %.4f   %.4f (%.2f)   %.4f (%.2f)\n",
                         row.capacity * 100, row.fleet.found, row.fleet.shared, row.lru,
                         Ratio(row.fleet.found, row.lru), row.learnt,
                         Ratio(row.fleet.found, row.learnt));
}

absl::Status Check(const FleetFlags& flags, const std::optional<ModelShape>& model) {
  if (flags.nodes < 1 || flags.nodes > kMaxNodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--nodes ", flags.nodes, ": from 1 to ", kMaxNodes, " stores"));
  }
  if (!(flags.node_share >= 0 && flags.node_share <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--node-share ", flags.node_share, " must be a share, from 0 to 1"));
  }
  if (flags.shared_bytes > 0 && !model.has_value()) {
    return absl::InvalidArgumentError("--shared-bytes: --model says what a block takes");
  }
  return absl::OkStatus();
}

}  // namespace

int RunFleet(const FleetFlags& flags, const std::string& trace_path,
             const std::optional<ModelShape>& model, std::vector<double> capacities, bool json,
             Console& console) {
  const absl::Status valid = Check(flags, model);
  if (!valid.ok()) return FailUsage(console, std::string(valid.message()));
  FleetShape shape;
  const absl::StatusOr<Routing> routing = ParseRouting(flags.routing);
  if (!routing.ok()) return FailUsage(console, absl::StrCat("--", routing.status().message()));
  shape.routing = *routing;
  shape.nodes = flags.nodes;
  const absl::StatusOr<Trace> trace = ReadTraceFile(trace_path);
  if (!trace.ok()) return Fail(console, trace.status());
  if (flags.shared_bytes > 0) {
    const double block = static_cast<double>(model->TokenBytes()) * Trace::kBlockTokens;
    capacities = {std::min(
        1.0, static_cast<double>(flags.shared_bytes) / block / std::max(1u, trace->unique_blocks))};
  }
  if (!json) {
    console.out << flags.nodes << " stores, " << flags.routing << " routing, one engine\n"
                << "  capacity   hit rate   shared   one lru store   one learnt store\n";
  }
  for (const double capacity : capacities) {
    shape.shared_blocks = static_cast<uint64_t>(capacity * trace->unique_blocks);
    shape.node_blocks =
        static_cast<uint64_t>(flags.node_share * static_cast<double>(shape.shared_blocks));
    const FleetRow row{capacity, SimulateFleet(*trace, shape),
                       HitRate(*trace, std::nullopt, SimulatedPolicy::kLru, capacity),
                       HitRate(*trace, std::nullopt, SimulatedPolicy::kDefault, capacity)};
    console.out << (json ? absl::StrCat(JsonLine(ToJson(row, flags)), "\n") : ToText(row))
                << std::flush;
  }
  return kExitOk;
}

}  // namespace hearth
