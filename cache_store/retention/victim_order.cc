#include "cache_store/retention/victim_order.h"

#include <cassert>

namespace hearth {

void VictimOrder::Owned::Enter(const Class& of, const Members& members) {
  const uint64_t first = std::get<0>(*members.places.begin());
  order.insert({members.worth + std::get<3>(of), first, of});
  by_worth.insert({members.worth, first, of});
}

void VictimOrder::Owned::Leave(const Class& of, const Members& members) {
  const uint64_t first = std::get<0>(*members.places.begin());
  order.erase({members.worth + std::get<3>(of), first, of});
  by_worth.erase({members.worth, first, of});
}

VictimOrder::Head VictimOrder::HeadOf(Owner owner, const Owned& owned) {
  const auto& [worth, tick, first] = *owned.by_worth.begin();
  return {worth, tick, owner};
}

void VictimOrder::Change(Owner owner, const Class& of, WorthOf worth,
                         absl::FunctionRef<void(Places*)> change) {
  std::unique_ptr<Owned>& owned = owned_[owner];
  if (owned == nullptr) {
    owned = std::make_unique<Owned>();
  } else {
    heads_.erase(HeadOf(owner, *owned));
  }
  const auto [found, is_new] = owned->classes.try_emplace(of);
  Members& members = found->second;
  if (is_new) {
    members.worth = worth(of);
  } else {
    owned->Leave(of, members);
  }
  change(&members.places);
  if (members.places.empty()) {
    owned->classes.erase(found);
  } else {
    owned->Enter(of, members);
  }
  if (owned->order.empty()) {
    owned_.erase(owner);
  } else {
    heads_.insert(HeadOf(owner, *owned));
  }
}

void VictimOrder::Add(Owner owner, const Class& of, const Place& place, WorthOf worth) {
  Change(owner, of, worth, [&](Places* places) { places->insert(place); });
}

void VictimOrder::Remove(Owner owner, const Class& of, const Place& place) {
  const auto no_worth = [](const Class&) { return 0; };
  Change(owner, of, no_worth, [&](Places* places) {
    const size_t erased = places->erase(place);
    assert(erased == 1);
  });
}

void VictimOrder::Weigh(WorthOf worth) {
  absl::flat_hash_map<Class, int> known;
  heads_.clear();
  for (auto& [owner, owned] : owned_) {
    for (auto& [of, members] : owned->classes) {
      const auto [found, is_new] = known.try_emplace(of, 0);
      if (is_new) found->second = worth(of);
      if (found->second == members.worth) continue;
      owned->Leave(of, members);
      members.worth = found->second;
      owned->Enter(of, members);
    }
    heads_.insert(HeadOf(owner, *owned));
  }
}

VictimOrder::Answer VictimOrder::VisitOne(const Owned& owned, absl::FunctionRef<Answer(Key)> take) {
  for (const auto& [worth, first, of] : owned.order) {
    for (const auto& [tick, longest_first, key] : owned.classes.at(of).places) {
      const Answer answer = take(key);
      if (answer != Answer::kNext) return answer;
    }
  }
  return Answer::kNextOwner;
}

void VictimOrder::Visit(absl::FunctionRef<Answer(Key)> take) const {
  for (const auto& [worth, tick, owner] : heads_) {
    if (VisitOne(*owned_.at(owner), take) == Answer::kTake) return;
  }
}

void VictimOrder::VisitOwned(Owner owner, absl::FunctionRef<Answer(Key)> take) const {
  const auto found = owned_.find(owner);
  if (found != owned_.end()) VisitOne(*found->second, take);
}

}  // namespace hearth
