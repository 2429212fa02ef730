// The command watch: prints the restore points that a store has, then every change.

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "proto/cache_store.grpc.pb.h"
#include "services/cli/connection.h"
#include "services/hearthctl/commands.h"
#include "services/hearthctl/json_text.h"

namespace hearth {
namespace {

constexpr char kWatchExamples[] =
    R"(  hearthctl watch                 (until Ctrl-C)
  hearthctl watch --once          (what is stored now, then end)
  hearthctl watch --json --no-snapshot
  hearthctl watch --since 41 --incarnation 9270913   (resume an earlier watch)
Prints every stored restore point, then each change with its number: stored, durable (now on disk),
pinned, unpinned, evicted, dropped or quarantined, and why. Change numbers have no gaps. "lost":
this reader was too slow, and missed the changes up to that number.
)";

struct WatchFlags {
  PeerFlags store{PeerKind::kStore, "", {}, ""};
  uint64_t since = 0;
  uint64_t incarnation = 0;
  bool no_snapshot = false;
  bool once = false;
  bool json = false;
};

std::string KindText(v1::WatchEvent::Kind kind) {
  return EnumText(*v1::WatchEvent::Kind_descriptor(), kind);
}

Json EventJson(const v1::WatchEvent& event) {
  Json json{{"kind", KindText(event.kind())},
            {"sequence", event.sequence()},
            {"incarnation", event.incarnation()}};
  if (event.kind() == v1::WatchEvent::START) json["resumed"] = event.resumed();
  if (!event.reason().empty()) json["reason"] = event.reason();
  if (event.has_restore_point()) json["restore_point"] = RestorePointJson(event.restore_point());
  return json;
}

std::string ReasonText(const std::string& reason) {
  if (reason == "host_full") return "RAM was full";
  if (reason == "disk_full") return "the disk was full";
  if (reason == "quota") return "its tenant's quota was reached";
  if (reason == "expired") return "its time to live ended";
  if (reason == "quarantined") return "its bytes failed verification";
  return reason == "dropped" ? "on request" : reason;
}

void PrintEvent(const v1::WatchEvent& event, Console& console) {
  switch (event.kind()) {
    case v1::WatchEvent::START:
      console.out << (event.resumed() ? "resumed after change " : "watching from change ")
                  << event.sequence() << " of incarnation " << event.incarnation() << "\n"
                  << "  change  what         id              tokens       size  tier    why\n";
      return;
    case v1::WatchEvent::SNAPSHOT_END:
      console.out << "  (up to date; changes follow)\n";
      return;
    case v1::WatchEvent::LOST:
      console.out << "  changes up to " << event.sequence()
                  << " were lost: this reader is too slow; run watch again for a snapshot\n";
      return;
    default:
      break;
  }
  const v1::RestorePointInfo& point = event.restore_point();
  const bool is_change = event.kind() != v1::WatchEvent::SNAPSHOT;
  console.out << absl::StrFormat("  %6s  %-11s  %-12s  %8u  %9s  %-6s  ",
                                 is_change ? std::to_string(event.sequence()) : "-",
                                 is_change ? KindText(event.kind()) : "is stored",
                                 HexText(point.restore_point_id()).substr(0, 12), point.tokens(),
                                 SizeText(point.bytes()), TierText(point.tier()))
              << ReasonText(event.reason());
  if (!is_change && point.pinned()) console.out << "pinned";
  console.out << "\n";
}

int RunWatch(const WatchFlags& flags, Console& console) {
  if (flags.since > 0 && flags.incarnation == 0) {
    return FailUsage(console, "--since needs --incarnation of the same earlier watch");
  }
  auto channel = Connect(flags.store);
  if (!channel.ok()) return Fail(console, channel.status());
  v1::WatchRequest request;
  request.set_tenant(flags.store.tenant);
  request.set_since_sequence(flags.since);
  request.set_incarnation(flags.incarnation);
  request.set_no_snapshot(flags.no_snapshot);
  grpc::ClientContext context;
  auto reader = v1::CacheStore::NewStub(*channel)->Watch(&context, request);
  v1::WatchEvent event;
  while (reader->Read(&event)) {
    const bool is_start = event.kind() == v1::WatchEvent::START;
    if (is_start && flags.since > 0 && !event.resumed() && !flags.json) {
      console.out << "cannot resume after change " << flags.since << " of incarnation "
                  << flags.incarnation
                  << ": the store was restarted, or no longer has the next changes\n";
    }
    if (flags.json) {
      PrintJson(EventJson(event), console);
    } else {
      PrintEvent(event, console);
      console.out << std::flush;
    }
    if (!console.out || (flags.once && event.kind() == v1::WatchEvent::SNAPSHOT_END)) {
      context.TryCancel();
      while (reader->Read(&event)) {
      }
      reader->Finish();
      return kExitOk;
    }
  }
  return Fail(console, RpcFailure(reader->Finish(), flags.store));
}

}  // namespace

void AddWatchCommand(CommandLine* line) {
  const auto [command, flags] = line->Add<WatchFlags>(
      "watch", "Follow changes of the stored restore points", kWatchExamples, RunWatch);
  flags->store.Declare(command);
  command->add_flag("--once", flags->once, "end when up to date");
  command->add_flag("--no-snapshot", flags->no_snapshot, "print changes only");
  command->add_option("--since", flags->since, "resume after this change number");
  command->add_option("--incarnation", flags->incarnation,
                      "incarnation of the store that the earlier watch printed");
  AddJson(command, &flags->json, " per line");
}

}  // namespace hearth
