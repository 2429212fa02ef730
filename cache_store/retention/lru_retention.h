// LruRetention: the least recently used unit goes first, and of those used by one request the
// longest, so that children go before parents. Remembers nothing of what went.
//
// Private to cache_store: callers use MakeRetention.
#ifndef HEARTH_CACHE_STORE_RETENTION_LRU_RETENTION_H_
#define HEARTH_CACHE_STORE_RETENTION_LRU_RETENTION_H_

#include <array>

#include "absl/container/flat_hash_map.h"
#include "cache_store/retention/retention.h"
#include "cache_store/retention/victim_order.h"

namespace hearth {

class LruRetention final : public Retention {
 public:
  void Touch(absl::Span<const Key> path, uint32_t prompt_tokens, absl::Time now) override;
  void Renew(absl::Span<const Key> path, absl::Time now) override { Touch(path, 0, now); }
  void Insert(Key key, const Facts& facts, const Prompt& prompt) override;
  void Adopt(Key key, const Facts& facts, bool has_child, absl::Time used, absl::Time now) override;
  void SetEvictable(Key key, Scope scope, bool offered) override;
  void Erase(Key key, bool remember) override;
  void Visit(Scope scope, absl::FunctionRef<Answer(Key)> take) override;
  void VisitOwned(Scope scope, Owner owner, absl::FunctionRef<Answer(Key)> take) override;
  bool Holds(Key key) const override { return units_.contains(key); }
  size_t held() const override { return units_.size(); }
  size_t remembered() const override { return 0; }

 private:
  struct Unit {
    uint64_t tick = 0;
    uint32_t tokens = 0;
    Owner owner = 0;
    std::array<bool, kScopes> offered{};
  };

  void Offer(Key key, const Unit& unit, size_t scope, bool offered);
  void Add(Key key, const Unit& unit);
  void SetTick(Key key, Unit* unit, uint64_t tick);

  uint64_t tick_ = uint64_t{1} << 32;  // adopted units count down from here
  uint64_t oldest_tick_ = uint64_t{1} << 32;
  absl::flat_hash_map<Key, Unit> units_;
  std::array<VictimOrder, kScopes> offered_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_RETENTION_LRU_RETENTION_H_
