#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "cache_store/base/stats.h"
#include "proto/cache_store.grpc.pb.h"
#include "services/cli/connection.h"
#include "services/hearthctl/commands.h"
#include "services/hearthctl/json_text.h"

namespace hearth {
namespace {

constexpr char kStatsExamples[] =
    R"(  hearthctl stats
  hearthctl stats --tenant team-a            (one tenant's bytes and limits)
)";

struct StatsFlags {
  PeerFlags store{PeerKind::kStore, "", {}, ""};
  bool json = false;
};

std::string LimitText(uint64_t limit, const std::string& text) {
  return limit == 0 ? "no limit" : text;
}

void PrintTenant(const v1::TenantStats& tenant, Console& console) {
  console.out << "  tenant " << tenant.tenant() << ": " << SizeText(tenant.bytes())
              << " stored; limits: bytes: "
              << LimitText(tenant.max_bytes(), SizeText(tenant.max_bytes())) << ", objects: "
              << LimitText(tenant.max_objects(), std::to_string(tenant.max_objects()))
              << ", pinned: "
              << LimitText(tenant.max_pinned_bytes(), SizeText(tenant.max_pinned_bytes()))
              << "; guaranteed: " << SizeText(tenant.floor_bytes()) << std::endl;
}

void PrintStats(const v1::StatsResponse& stats, Console& console) {
  console.out << "store " << stats.version() << ", up " << AgeText(stats.uptime_s()) << ": "
              << stats.restore_points() << " restore points, " << stats.objects() << " objects, "
              << SizeText(stats.pinned_bytes()) << " pinned\n";
  if (stats.has_tenant()) return PrintTenant(stats.tenant(), console);
  console.out << "  records of restore points use " << SizeText(stats.point_bytes())
              << " of the host tier's capacity\n";
  console.out << "  tier         used   capacity   objects  evicted  tokens served       read    "
                 "written  never read\n";
  for (const auto& tier : stats.tiers()) {
    console.out << absl::StrFormat(
        "  %-6s  %9s  %9s  %8u  %7u  %13u  %9s  %9s  %10s\n", TierText(tier.tier()),
        SizeText(tier.bytes()), SizeText(tier.capacity_bytes()), tier.objects(),
        tier.evicted_restore_points(), tier.hit_tokens(), SizeText(tier.read_bytes()),
        SizeText(tier.written_bytes()), SizeText(tier.unread_bytes()));
  }
  const std::map<std::string, uint64_t> counters(stats.counters().begin(), stats.counters().end());
  for (const auto& [name, count] : counters) {
    if (count == 0) continue;
    if (name == CounterName(Counter::kLastFullScrubUnixS)) {
      const absl::Time scrubbed = absl::FromUnixSeconds(static_cast<int64_t>(count));
      console.out << "  last_full_scrub "
                  << absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", scrubbed, absl::UTCTimeZone())
                  << "\n";
    } else {
      console.out << "  " << name << " " << count << "\n";
    }
  }
  console.out << std::flush;
}

int RunStats(const StatsFlags& flags, Console& console) {
  v1::StatsRequest request;
  request.set_tenant(flags.store.tenant);
  const auto stats = Ask(flags.store, &v1::CacheStore::Stub::Stats, request);
  if (!stats.ok()) return Fail(console, stats.status());
  if (flags.json) return PrintJson(MessageJson(*stats), console);
  PrintStats(*stats, console);
  return kExitOk;
}

}  // namespace

void AddStatsCommand(CommandLine* line) {
  const auto [command, flags] = line->Add<StatsFlags>(
      "stats", "Show a store's tiers, limits and counters", kStatsExamples, RunStats);
  flags->store.Declare(command);
  AddJson(command, &flags->json);
}

}  // namespace hearth
