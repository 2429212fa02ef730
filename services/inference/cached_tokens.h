// The tokens of prompts that came from a cache, out of an engine's counters.
//
// Pure functions.
#ifndef HEARTH_SERVICES_INFERENCE_CACHED_TOKENS_H_
#define HEARTH_SERVICES_INFERENCE_CACHED_TOKENS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace hearth {

// The tier whose tokens the counter counts; none: it counts something else.
inline std::optional<std::string> TierOfCachedTokens(absl::string_view counter) {
  if (!absl::ConsumePrefix(&counter, "cached_tokens_")) return std::nullopt;
  return std::string(counter);
}

// From all tiers together.
inline uint64_t CachedTokens(const std::map<std::string, uint64_t>& counters) {
  uint64_t tokens = 0;
  for (const auto& [name, count] : counters) {
    if (TierOfCachedTokens(name).has_value()) tokens += count;
  }
  return tokens;
}

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CACHED_TOKENS_H_
