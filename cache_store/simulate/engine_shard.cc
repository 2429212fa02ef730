#include "cache_store/simulate/engine_shard.h"

#include <algorithm>

namespace hearth {

void EngineShard::PutOff(uint32_t block, absl::Time end) {
  const auto place = places_.find(block);
  if (place == places_.end()) return;
  absl::Time& known = values_[place->second].end;
  known = std::max(known, end);
}

void EngineShard::Write(uint32_t block, absl::Time end) {
  if (capacity_ == 0) return;
  if (Contains(block)) {
    PutOff(block, end);
    return;
  }
  while (values_.size() >= capacity_) GiveUpOne();
  places_[block] = values_.size();
  values_.push_back({block, end});
}

void EngineShard::GiveUpOne() {
  for (uint32_t i = 0; i < samples_; ++i) {
    const uint32_t block = values_[random_() % values_.size()].block;
    if (std::find(candidates_.begin(), candidates_.end(), block) == candidates_.end()) {
      candidates_.push_back(block);
    }
  }
  const auto gone = [this](uint32_t block) { return !Contains(block); };
  candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), gone),
                    candidates_.end());
  const auto sooner = [this](uint32_t a, uint32_t b) { return EndOf(a) < EndOf(b); };
  std::sort(candidates_.begin(), candidates_.end(), sooner);
  const uint32_t victim = candidates_.front();
  candidates_.erase(candidates_.begin());
  candidates_.resize(std::min(candidates_.size(), kCandidates));
  Erase(victim);
}

void EngineShard::Erase(uint32_t block) {
  const size_t at = places_.at(block);
  values_[at] = values_.back();
  places_[values_[at].block] = at;
  values_.pop_back();
  places_.erase(block);
}

}  // namespace hearth
