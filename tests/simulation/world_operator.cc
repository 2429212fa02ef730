// The operator of a world: pins, drops, explains, quarantines, makes backups.

#include "absl/strings/str_cat.h"
#include "proto/restore_rule.h"
#include "tests/simulation/world.h"

namespace hearth {

void World::Operate(Dice* dice) {
  const uint64_t what = dice->Roll(100), which = dice->Roll(1000);
  const std::string& tenant = Node::Tenants()[dice->Roll(Node::Tenants().size())];
  const size_t prompt = dice->Roll(oracle_.prompts().size());
  const bool forces = dice->Chance(50);
  if (!node_.is_up() || node_.is_draining()) return;
  if (what < 40) return Pin(tenant, which, what < 28);
  if (what < 55) return Drop(tenant, which, forces);
  if (what < 57) return DropAll(tenant, forces);
  if (what < 80) return Explain(tenant, prompt);
  if (what < 83) return BackUp();
  Quarantine(tenant, prompt);
}

void World::Pin(const std::string& tenant, size_t which, bool pinned) {
  const std::vector<RestorePoint> all = node_.store()->List(tenant);
  if (all.empty()) return;
  const RestorePoint& chosen = all[which % all.size()];
  const auto done = node_.store()->SetPinned(chosen.id, tenant, pinned);
  node_.TakeEvents();
  if (done.ok() && pinned) node_.ledger()->Pinned(chosen.id);
  if (done.ok() && pinned && !node_.ledger()->Knows(chosen.id)) {
    const auto session = node_.store()->FetchById(chosen.id, tenant);
    if (session.ok()) node_.ledger()->PinnedUnpublished(tenant, (*session)->plan());
  }
  time_.Note(absl::StrCat(pinned ? "pins " : "unpins ", chosen.tokens, " tokens of ", tenant, ": ",
                          absl::StatusCodeToString(done.status().code())));
  for (const std::string& other : Node::Tenants()) {
    if (other == tenant) continue;
    if (!absl::IsNotFound(node_.store()->SetPinned(chosen.id, other, pinned).status())) {
      time_.Violated(12, "another tenant may pin it");
    }
  }
}

void World::Drop(const std::string& tenant, size_t which, bool forces) {
  const std::vector<RestorePoint> all = node_.store()->List(tenant);
  if (all.empty()) return;
  const RestorePoint& chosen = all[which % all.size()];
  node_.TakeEvents();
  node_.ledger()->SetDropping(true);
  const auto dropped = node_.store()->Drop(chosen.id, tenant, forces);
  node_.TakeEvents();
  node_.ledger()->SetDropping(false);
  time_.Note(absl::StrCat("drops ", chosen.tokens, " tokens of ", tenant, ": ",
                          absl::StatusCodeToString(dropped.status().code())));
  if (!dropped.ok() || dropped->dropped == 0) return;
  for (const RestorePoint& left : node_.store()->List(tenant)) {
    if (left.id == chosen.id) time_.Violated(23, "dropped, and listed");
  }
}

void World::DropAll(const std::string& tenant, bool forces) {
  node_.TakeEvents();
  node_.ledger()->SetDropping(true);
  const auto dropped = node_.store()->DropAll(tenant, forces);
  node_.TakeEvents();
  node_.ledger()->SetDropping(false);
  time_.Note(absl::StrCat("drops all of ", tenant, ": ",
                          absl::StatusCodeToString(dropped.status().code())));
  if (!dropped.ok() || !forces) return;
  if (!node_.store()->List(tenant).empty()) time_.Violated(23, "all dropped, and some listed");
}

PrefixQuery World::QueryOf(const std::string& tenant, size_t prompt) const {
  const SimPrompt& of = oracle_.prompts()[prompt];
  PrefixQuery query;
  query.fingerprint = oracle_.fingerprint().digest();
  query.tenant = tenant;
  query.token_ids.assign(of.tokens.begin(), of.tokens.end());
  query.cuts = of.cuts;
  return query;
}

// Checks that a lookup finds exactly the boundaries that Explain reports as usable. Each call first
// removes a few expired restore points. A boundary without a restore point is usable only after all
// expired restore points were removed, so after a night the two agree only after several calls.
void World::Explain(const std::string& tenant, size_t prompt) {
  constexpr int kLookups = 64;
  const PrefixQuery query = QueryOf(tenant, prompt);
  uint32_t explained = 0, usable = 0;
  for (int lookup = 0; lookup < kLookups && (lookup == 0 || explained != usable); ++lookup) {
    const auto report = node_.store()->Explain(query);
    const auto fetch = node_.store()->Fetch(query, 0, 0);
    if (!report.ok() || !fetch.ok()) {
      if (node_.is_damaged() || node_.was_struck()) return;
      return time_.Violated(8, absl::StrCat("a lookup failed: ", report.status().ToString(), ", ",
                                            fetch.status().ToString()));
    }
    node_.ledger()->CheckPlan(query, 0, (*fetch)->plan());
    explained = report->usable_tokens;
    usable = (*fetch)->plan().usable_tokens;
  }
  time_.Note(absl::StrCat("explains prompt ", prompt, " of ", tenant, ": ", explained));
  if (explained != usable) {
    time_.Violated(3, absl::StrCat("explained as ", explained, ", found ", usable));
  }
}

void World::Quarantine(const std::string& tenant, size_t prompt) {
  const PrefixQuery query = QueryOf(tenant, prompt);
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  const std::vector<ObjectId> needed = NeededObjects(
      oracle_.layout(), tokens / oracle_.layout().chunk_tokens * oracle_.layout().chunk_tokens);
  if (needed.empty()) return;
  const ObjectId chosen = needed[prompt % needed.size()];
  node_.TakeEvents();
  node_.ledger()->SetDropping(true);
  const auto done = node_.store()->Quarantine(query, {chosen});
  node_.TakeEvents();
  node_.ledger()->SetDropping(false);
  time_.Note(absl::StrCat("quarantines ", chosen.begin, "+", chosen.tokens, " of prompt ", prompt,
                          " of ", tenant, ": ", absl::StatusCodeToString(done.status().code())));
  if (!done.ok()) return;
  node_.ledger()->Quarantined(
      ObjectName(tenant, query.token_ids, query.cuts, chosen, oracle_.layout()),
      /*for_good=*/done->on_disk.ok());
}

}  // namespace hearth
