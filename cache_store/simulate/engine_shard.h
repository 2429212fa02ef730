// EngineShard: one shard of the engine that a simulated fleet shares: blocks by the ends of their
// lives, given up as Redis' volatile-ttl does.
//
// Room is made by looking at a few values taken at random, and at the best candidates of before:
// the one that would end first goes.
//
// Private to cache_store/simulate. Thread safety: none. Equal calls give equal results.
#ifndef HEARTH_CACHE_STORE_SIMULATE_ENGINE_SHARD_H_
#define HEARTH_CACHE_STORE_SIMULATE_ENGINE_SHARD_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"

namespace hearth {

class EngineShard {
 public:
  // `samples`: Redis' maxmemory-samples.
  EngineShard(uint64_t capacity_blocks, uint32_t samples, uint64_t seed)
      : capacity_(capacity_blocks), samples_(samples), random_(seed) {}

  bool Contains(uint32_t block) const { return places_.contains(block); }
  // REQUIRES: Contains(block).
  absl::Time EndOf(uint32_t block) const { return values_[places_.at(block)].end; }
  // One that is gone stays gone; no end comes nearer.
  void PutOff(uint32_t block, absl::Time end);
  // Puts the end off where it is there.
  void Write(uint32_t block, absl::Time end);

 private:
  struct Value {
    uint32_t block = 0;
    absl::Time end;
  };
  static constexpr size_t kCandidates = 16;  // that Redis remembers between two evictions

  void GiveUpOne();
  void Erase(uint32_t block);

  const uint64_t capacity_;
  const uint32_t samples_;
  std::mt19937_64 random_;
  std::vector<Value> values_;
  absl::flat_hash_map<uint32_t, size_t> places_;
  std::vector<uint32_t> candidates_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SIMULATE_ENGINE_SHARD_H_
