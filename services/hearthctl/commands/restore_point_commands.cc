// ls, pin, unpin, drop.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/hearthctl/command_set.h"
#include "services/hearthctl/json_text.h"
#include "services/hearthctl/restore_points.h"
#include "services/hearthctl/stopped_store.h"

namespace hearth {
namespace {

constexpr char kListExamples[] =
    R"(  hearthctl ls
  hearthctl ls --json | head -1
  hearthctl ls --data-dir /var/lib/hearth      (of a store that is stopped)
Each restore point: an id (its first digits are enough elsewhere), the tokens it covers, its bytes,
the fastest tier that holds all of it, whether it is durable and pinned, its age since last use,
the time it has left to live, and its last token ids.
)";
constexpr char kPinExamples[] = R"(  hearthctl pin 3fa94c1200aa      (never evicted until unpinned)
  hearthctl unpin 3fa94c1200aa
)";
constexpr char kDropExamples[] = R"(  hearthctl drop 3fa94c1200aa
  hearthctl drop --all            (every restore point that is not pinned)
  hearthctl drop --all --force    (pinned ones too)
)";

struct StoreFlags {
  PeerFlags store{PeerKind::kStore, "", {}, ""};
  StoppedStoreFlags stopped;  // ls
  std::string id;
  bool all = false;
  bool force = false;
  bool json = false;
};

void PrintHeader(Console& console) {
  console.out << "id              tokens       size  tier    durable  pinned       age   hits  "
                 "    left  last tokens\n";
}

void PrintPoint(const v1::RestorePointInfo& point, Console& console) {
  char line[160];
  std::snprintf(line, sizeof(line), "%-12s  %8u  %9s  %-6s  %-7s  %-6s  %8s  %5llu  %8s ",
                HexText(point.restore_point_id()).substr(0, 12).c_str(), point.tokens(),
                SizeText(point.bytes()).c_str(), TierText(point.tier()).c_str(),
                point.durable() ? "yes" : "no", point.pinned() ? "yes" : "no",
                AgeText(point.age_s()).c_str(), static_cast<unsigned long long>(point.hits()),
                point.has_expires_in_s() ? AgeText(point.expires_in_s()).c_str() : "-");
  console.out << line;
  for (uint32_t id : point.last_token_ids()) console.out << " " << id;
  console.out << "\n";
}

absl::StatusOr<std::vector<v1::RestorePointInfo>> PointsOf(const StoreFlags& flags) {
  if (!flags.stopped.data_dir.empty()) {
    auto store = StoppedStore::Open(flags.stopped, flags.store.tenant);
    if (!store.ok()) return store.status();
    return (*store)->List();
  }
  auto channel = Connect(flags.store);
  if (!channel.ok()) return channel.status();
  return ListRestorePoints(v1::CacheStore::NewStub(*channel).get(), flags.store);
}

int RunList(const StoreFlags& flags, Console& console) {
  auto points = PointsOf(flags);
  if (!points.ok()) return Fail(console, points.status());
  std::sort(points->begin(), points->end(),
            [](const auto& a, const auto& b) { return a.age_s() < b.age_s(); });
  if (!flags.json) PrintHeader(console);
  for (const v1::RestorePointInfo& point : *points) {
    if (flags.json) {
      console.out << JsonLine(RestorePointJson(point)) << "\n";
    } else {
      PrintPoint(point, console);
    }
  }
  console.out << std::flush;
  return kExitOk;
}

int RunPin(const StoreFlags& flags, bool pinned, Console& console) {
  auto channel = Connect(flags.store);
  if (!channel.ok()) return Fail(console, channel.status());
  auto stub = v1::CacheStore::NewStub(*channel);
  auto id = ResolveId(stub.get(), flags.store, flags.id);
  if (!id.ok()) return Fail(console, id.status());
  v1::PinRequest request;
  request.set_tenant(flags.store.tenant);
  request.set_restore_point_id(*id);
  v1::PinResponse response;
  grpc::ClientContext context;
  const grpc::Status status =
      pinned ? stub->Pin(&context, request, &response) : stub->Unpin(&context, request, &response);
  if (!status.ok()) return Fail(console, RpcFailure(status, flags.store));
  if (flags.json) {
    console.out << JsonLine(RestorePointJson(response.restore_point())) << std::endl;
    return kExitOk;
  }
  PrintHeader(console);
  PrintPoint(response.restore_point(), console);
  console.out << std::flush;
  return kExitOk;
}

int RunDrop(const StoreFlags& flags, Console& console) {
  if (flags.all == !flags.id.empty()) {
    return FailUsage(console, "drop takes either an id or --all");
  }
  auto channel = Connect(flags.store);
  if (!channel.ok()) return Fail(console, channel.status());
  auto stub = v1::CacheStore::NewStub(*channel);
  v1::DropRequest request;
  request.set_tenant(flags.store.tenant);
  request.set_all(flags.all);
  request.set_force(flags.force);
  if (!flags.all) {
    auto id = ResolveId(stub.get(), flags.store, flags.id);
    if (!id.ok()) return Fail(console, id.status());
    request.set_restore_point_id(*id);
  }
  v1::DropResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub->Drop(&context, request, &response);
  if (!status.ok()) return Fail(console, RpcFailure(status, flags.store));
  if (flags.json) {
    console.out << JsonLine(Json{{"dropped", response.dropped()},
                                 {"freed_bytes", response.freed_bytes()},
                                 {"kept_pinned", response.kept_pinned()}})
                << std::endl;
  }
  if (!flags.all && response.kept_pinned() > 0) {
    return Fail(console, absl::FailedPreconditionError(absl::StrCat(
                             flags.id, " is pinned and was kept: unpin it first, or --force")));
  }
  if (flags.json) return kExitOk;
  console.out << "dropped " << response.dropped() << " restore points, "
              << SizeText(response.freed_bytes()) << " freed";
  if (response.kept_pinned() > 0) {
    console.out << "; " << response.kept_pinned()
                << " pinned and kept (--force drops pinned ones too)";
  }
  console.out << std::endl;
  return kExitOk;
}

CommandFlags* AddStoreCommand(CommandSet* commands, const std::string& name,
                              const std::string& what, const char* examples, StoreFlags* flags) {
  CommandFlags* command = commands->Add(name, what, examples);
  flags->store.Declare(command);
  command->AddJson(&flags->json, " a line");
  return command;
}

}  // namespace

void AddListCommand(CommandSet* commands) {
  auto flags = std::make_shared<StoreFlags>();
  CommandFlags* command = AddStoreCommand(commands, "ls", "List the store's restore points",
                                          kListExamples, flags.get());
  flags->stopped.Declare(command);
  commands->Run(command, [flags](Console& console) { return RunList(*flags, console); });
}

void AddPinCommands(CommandSet* commands) {
  for (const bool pinned : {true, false}) {
    auto flags = std::make_shared<StoreFlags>();
    CommandFlags* command = AddStoreCommand(
        commands, pinned ? "pin" : "unpin",
        pinned ? "Keep a restore point whatever happens" : "Let a restore point be evicted again",
        kPinExamples, flags.get());
    command->AddPoint(&flags->id).Required();
    commands->Run(command,
                  [flags, pinned](Console& console) { return RunPin(*flags, pinned, console); });
  }
}

void AddDropCommand(CommandSet* commands) {
  auto flags = std::make_shared<StoreFlags>();
  CommandFlags* command =
      AddStoreCommand(commands, "drop", "Remove restore points", kDropExamples, flags.get());
  command->AddPoint(&flags->id);
  command->AddSwitch("--all", &flags->all, "all of them");
  command->AddSwitch("--force", &flags->force, "pinned ones too");
  commands->Run(command, [flags](Console& console) { return RunDrop(*flags, console); });
}

}  // namespace hearth
