// The commands ls, pin, unpin and drop, which list and change the restore points of a store.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cache_store/base/tenant_accounts.h"
#include "services/hearthctl/commands.h"
#include "services/hearthctl/json_text.h"
#include "services/hearthctl/restore_points.h"

namespace hearth {
namespace {

constexpr char kListExamples[] =
    R"(  hearthctl ls
  hearthctl ls --tenant '*'                                       (all tenants; for administrators)
  hearthctl ls --json | jq -c 'select(.tokens > 4096 and .age_s > 3600)'
  hearthctl ls --json | jq -sc 'sort_by(-.bytes)[:10][]'          (the largest)
Columns: id (other commands accept its first digits), tokens covered, bytes, the fastest tier that
holds all of it, whether it is durable and pinned, time since last use, hits, time to live left, how
long it is evicted last in its tenant (kept), priority, and the last token ids. Last used first.
)";
constexpr char kPinExamples[] = R"(  hearthctl pin 3fa94c1200aa      (never evicted until unpinned)
  hearthctl unpin 3fa94c1200aa
)";
constexpr char kDropExamples[] = R"(  hearthctl drop 3fa94c1200aa
  hearthctl drop --all            (every restore point; refused while one is pinned)
  hearthctl drop --all --force    (drop pinned restore points too)
)";

struct StoreFlags {
  PeerFlags store{PeerKind::kStore, "", {}, ""};
  std::string id;
  bool all = false;
  bool force = false;
  bool json = false;
};

void PrintHeader(Console& console) {
  console.out << "id              tokens       size  tier    durable  pinned       age   hits  "
                 "    left      kept  priority  last tokens\n";
}

void PrintPoint(const v1::RestorePointInfo& point, Console& console, bool with_tenant = false) {
  console.out << absl::StrFormat(
      "%-12s  %8u  %9s  %-6s  %-7s  %-6s  %8s  %5u  %8s  %8s  %8d ",
      HexText(point.restore_point_id()).substr(0, 12), point.tokens(), SizeText(point.bytes()),
      TierText(point.tier()), point.durable() ? "yes" : "no", point.pinned() ? "yes" : "no",
      AgeText(point.age_s()), point.hits(),
      point.has_expires_in_s() ? AgeText(point.expires_in_s()) : "-",
      point.kept_s() > 0 ? AgeText(point.kept_s()) : "-", point.priority());
  for (uint32_t id : point.last_token_ids()) console.out << " " << id;
  if (with_tenant) console.out << "  of tenant " << point.tenant();
  console.out << "\n";
}

int RunList(const StoreFlags& flags, Console& console) {
  const auto channel = Connect(flags.store);
  if (!channel.ok()) return Fail(console, channel.status());
  std::string tenant;
  auto points = ListRestorePoints(v1::CacheStore::NewStub(*channel).get(), flags.store, &tenant);
  if (!points.ok()) return Fail(console, points.status());
  const auto is_younger = [](const auto& a, const auto& b) { return a.age_s() < b.age_s(); };
  std::stable_sort(points->begin(), points->end(), is_younger);
  const bool is_of_all = flags.store.tenant == kAllTenants;
  if (!flags.json) {
    if (!tenant.empty() && !is_of_all) {
      console.out << "restore points of tenant " << tenant << "; --tenant '*' lists all tenants\n";
    }
    PrintHeader(console);
  }
  for (const v1::RestorePointInfo& point : *points) {
    if (flags.json) {
      PrintJson(RestorePointJson(point), console);
    } else {
      PrintPoint(point, console, is_of_all);
    }
  }
  console.out << std::flush;
  return kExitOk;
}

// Pins the restore point if kPinned is true, else unpins it.
template <bool kPinned>
int RunPin(const StoreFlags& flags, Console& console) {
  constexpr auto kMethod = kPinned ? &v1::CacheStore::Stub::Pin : &v1::CacheStore::Stub::Unpin;
  const auto channel = Connect(flags.store);
  if (!channel.ok()) return Fail(console, channel.status());
  const auto store = v1::CacheStore::NewStub(*channel);
  auto id = ResolveId(store.get(), flags.store, flags.id);
  if (!id.ok()) return Fail(console, id.status());
  v1::PinRequest request;
  request.set_tenant(flags.store.tenant);
  request.set_restore_point_id(*id);
  const auto response = Call(store.get(), kMethod, request, flags.store);
  if (!response.ok()) return Fail(console, response.status());
  if (flags.json) return PrintJson(RestorePointJson(response->restore_point()), console);
  PrintHeader(console);
  PrintPoint(response->restore_point(), console);
  console.out << std::flush;
  return kExitOk;
}

int RunDrop(const StoreFlags& flags, Console& console) {
  if (flags.all == !flags.id.empty()) {
    return FailUsage(console, "drop needs either an id or --all");
  }
  const auto channel = Connect(flags.store);
  if (!channel.ok()) return Fail(console, channel.status());
  const auto store = v1::CacheStore::NewStub(*channel);
  v1::DropRequest request;
  request.set_tenant(flags.store.tenant);
  request.set_all(flags.all);
  request.set_force(flags.force);
  if (!flags.all) {
    auto id = ResolveId(store.get(), flags.store, flags.id);
    if (!id.ok()) return Fail(console, id.status());
    request.set_restore_point_id(*id);
  }
  const auto response = Call(store.get(), &v1::CacheStore::Stub::Drop, request, flags.store);
  if (!response.ok()) return Fail(console, response.status());
  if (flags.json) PrintJson(MessageJson(*response), console);
  if (response->kept_pinned() > 0) {
    return Fail(console,
                absl::FailedPreconditionError(absl::StrCat(
                    flags.id, " is pinned and was not dropped: unpin it first, or pass --force")));
  }
  if (flags.json) return kExitOk;
  console.out << "dropped " << response->dropped() << " restore points, "
              << SizeText(response->freed_bytes()) << " freed";
  console.out << std::endl;
  return kExitOk;
}

}  // namespace

void AddRestorePointCommands(CommandLine* line) {
  const auto add = [line](const char* name, const char* what, const char* examples, auto run) {
    const auto added = line->Add<StoreFlags>(name, what, examples, run);
    added.second->store.Declare(added.first);
    AddJson(added.first, &added.second->json, " per line");
    return added;
  };
  add("ls", "List the store's restore points", kListExamples, RunList);
  const auto [pin, pinned] =
      add("pin", "Protect a restore point from eviction", kPinExamples, RunPin<true>);
  AddPoint(pin, &pinned->id)->required();
  const auto [unpin, unpinned] =
      add("unpin", "Allow eviction of a pinned restore point", kPinExamples, RunPin<false>);
  AddPoint(unpin, &unpinned->id)->required();
  const auto [drop, dropped] = add("drop", "Remove restore points", kDropExamples, RunDrop);
  AddPoint(drop, &dropped->id);
  drop->add_flag("--all", dropped->all, "drop all restore points");
  AddForce(drop, &dropped->force, "drop pinned restore points too");
}

}  // namespace hearth
