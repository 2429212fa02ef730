#include <cstdio>
#include <memory>

#include "absl/time/time.h"
#include "cache_store/base/stats.h"
#include "proto/cache_store.grpc.pb.h"
#include "proto/inference.grpc.pb.h"
#include "services/hearthctl/command_set.h"
#include "services/hearthctl/connection.h"
#include "services/hearthctl/json_text.h"
#include "services/hearthctl/model_info.h"

namespace hearth {
namespace {

constexpr char kStatsExamples[] =
    R"(  hearthctl stats                            (the store)
  hearthctl stats --worker 127.0.0.1:7070    (which model a worker runs, and how)
)";

struct StatsFlags {
  PeerFlags store{PeerKind::kStore, "", {}, ""};
  PeerFlags worker;
  bool json = false;
};

Json StatsJson(const v1::StatsResponse& stats) {
  Json json{{"version", stats.version()},   {"incarnation", stats.incarnation()},
            {"uptime_s", stats.uptime_s()}, {"restore_points", stats.restore_points()},
            {"objects", stats.objects()},   {"pinned_bytes", stats.pinned_bytes()}};
  if (stats.has_tenant()) {
    const v1::TenantStats& tenant = stats.tenant();
    json["tenant"] = {{"tenant", tenant.tenant()},
                      {"bytes", tenant.bytes()},
                      {"max_bytes", tenant.max_bytes()},
                      {"max_objects", tenant.max_objects()},
                      {"max_pinned_bytes", tenant.max_pinned_bytes()},
                      {"floor_bytes", tenant.floor_bytes()}};
  }
  json["tiers"] = Json::array();
  for (const auto& tier : stats.tiers()) {
    json["tiers"].push_back({{"tier", TierText(tier.tier())},
                             {"bytes", tier.bytes()},
                             {"capacity_bytes", tier.capacity_bytes()},
                             {"objects", tier.objects()},
                             {"evicted_restore_points", tier.evicted_restore_points()},
                             {"hit_tokens", tier.hit_tokens()},
                             {"read_bytes", tier.read_bytes()},
                             {"written_bytes", tier.written_bytes()},
                             {"unread_bytes", tier.unread_bytes()}});
  }
  json["removed"] = std::map<std::string, uint64_t>(stats.removed().begin(), stats.removed().end());
  json["counters"] =
      std::map<std::string, uint64_t>(stats.counters().begin(), stats.counters().end());
  return json;
}

std::string LimitText(uint64_t limit, const std::string& text) {
  return limit == 0 ? "no limit" : text;
}

void PrintTenant(const v1::TenantStats& tenant, Console& console) {
  console.out << "  tenant " << tenant.tenant() << ": " << SizeText(tenant.bytes())
              << "; may hold: " << LimitText(tenant.max_bytes(), SizeText(tenant.max_bytes()))
              << ", objects: "
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
  console.out << "  tier         used   capacity   objects  evicted  tokens served       read    "
                 "written  never read\n";
  for (const auto& tier : stats.tiers()) {
    char line[160];
    std::snprintf(
        line, sizeof(line), "  %-6s  %9s  %9s  %8llu  %7llu  %13llu  %9s  %9s  %10s\n",
        TierText(tier.tier()).c_str(), SizeText(tier.bytes()).c_str(),
        SizeText(tier.capacity_bytes()).c_str(), static_cast<unsigned long long>(tier.objects()),
        static_cast<unsigned long long>(tier.evicted_restore_points()),
        static_cast<unsigned long long>(tier.hit_tokens()), SizeText(tier.read_bytes()).c_str(),
        SizeText(tier.written_bytes()).c_str(), SizeText(tier.unread_bytes()).c_str());
    console.out << line;
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

int RunStoreStats(const StatsFlags& flags, Console& console) {
  auto channel = Connect(flags.store);
  if (!channel.ok()) return Fail(console, channel.status());
  v1::StatsRequest request;
  request.set_tenant(flags.store.tenant);
  v1::StatsResponse stats;
  grpc::ClientContext context;
  const grpc::Status status = v1::CacheStore::NewStub(*channel)->Stats(&context, request, &stats);
  if (!status.ok()) return Fail(console, RpcFailure(status, flags.store));
  if (flags.json) {
    console.out << JsonLine(StatsJson(stats)) << std::endl;
  } else {
    PrintStats(stats, console);
  }
  return kExitOk;
}

int RunWorkerStats(const StatsFlags& flags, Console& console) {
  auto channel = Connect(flags.worker);
  if (!channel.ok()) return Fail(console, channel.status());
  v1::GetModelResponse model;
  grpc::ClientContext context;
  const grpc::Status status =
      v1::Inference::NewStub(*channel)->GetModel(&context, v1::GetModelRequest(), &model);
  if (!status.ok()) return Fail(console, RpcFailure(status, flags.worker));
  PrintModel(model, flags.json, console);
  return kExitOk;
}

}  // namespace

void AddStatsCommand(CommandSet* commands) {
  auto flags = std::make_shared<StatsFlags>();
  CommandFlags* command =
      commands->Add("stats", "How full a store is and what it did", kStatsExamples);
  flags->store.Declare(command);
  flags->worker.access = flags->store.access;
  flags->worker.DeclareOptional(command, "describe this worker instead of the store");
  command->AddJson(&flags->json);
  commands->Run(command, [flags](Console& console) {
    return flags->worker.address.empty() ? RunStoreStats(*flags, console)
                                         : RunWorkerStats(*flags, console);
  });
}

}  // namespace hearth
