#include "cache_store/catalog/compute_cost.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <variant>

namespace hearth {
namespace {

// For each element of keys and values: between Gemma 3 270M's 11 thousand and 27B's 100.
constexpr double kMultiplyAddsPerElement = 32768;
// Numbers come from callers.
constexpr double kMaxSteps = 128;

// 0 where there is none.
double Integer(const Fingerprint& fingerprint, const char* name) {
  for (const FingerprintField& field : fingerprint.fields()) {
    const auto* value = std::get_if<uint64_t>(&field.value);
    if (value != nullptr && field.name == name) return static_cast<double>(*value);
  }
  return 0;
}

}  // namespace

double MultiplyAddsPerToken(const Fingerprint& fingerprint, const KvLayout& layout) {
  const double layers = static_cast<double>(layout.layers.size());
  const double kv_columns = 2.0 * layout.kv_heads * layout.head_dim;
  const double hidden = Integer(fingerprint, "hidden_size");
  const double heads = Integer(fingerprint, "heads");
  const double intermediate = Integer(fingerprint, "intermediate_size");
  if (hidden == 0 || heads == 0 || intermediate == 0) {
    return layers * kv_columns * kMultiplyAddsPerElement;
  }
  const double query_and_output = 2 * heads * layout.head_dim;
  return layers * hidden * (query_and_output + kv_columns + 3 * intermediate);
}

int CostStepsOf(double multiply_adds) {
  const double steps = std::round(2 * std::log2(std::max(1.0, multiply_adds)));
  return static_cast<int>(std::min(steps, kMaxSteps));
}

}  // namespace hearth
