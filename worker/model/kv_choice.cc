#include "worker/model/kv_choice.h"

#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace hearth {
namespace {

// The first names are in the order of KvStrategy.
struct NamedStrategy {
  const char* name;
  KvStrategy on_cpu, on_device;
};
constexpr NamedStrategy kStrategies[] = {
    {"dynamic", KvStrategy::kDynamic, KvStrategy::kDynamic},
    {"static", KvStrategy::kStatic, KvStrategy::kStatic},
    {"quantized", KvStrategy::kQuantized, KvStrategy::kQuantized},
    {"offloaded", KvStrategy::kDynamic, KvStrategy::kOffloaded},
    {"offloaded_static", KvStrategy::kStatic, KvStrategy::kOffloaded},
};

// Unknown names are truncated to this length in error messages.
constexpr size_t kMaxShownBytes = 80;

std::optional<KvStrategy> StrategyOf(absl::string_view name, bool on_device) {
  for (const NamedStrategy& known : kStrategies) {
    if (name == known.name) return on_device ? known.on_device : known.on_cpu;
  }
  return std::nullopt;
}

absl::Status Unknown(const char* field, absl::string_view name) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": must be one of ", KvStrategyNames(), "; got \"",
                   absl::CEscape(name.substr(0, kMaxShownBytes)), "\""));
}

absl::Status OfQuantization(absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("kv_quantization: ", message));
}

absl::StatusOr<KvQuantization> QuantizationOf(const std::string& options, const KvLayout& layout) {
  uint32_t residual = 0;
  const absl::StatusOr<KvQuantization> read = ParseKvQuantization(options, &residual);
  if (!read.ok()) return OfQuantization(read.status().message());
  // A quantized KV block covers a whole chunk, because the block may be stored and used by other
  // requests.
  if (residual != 0 && residual != layout.chunk_tokens) {
    return OfQuantization(absl::StrCat("residual: must be 0 or ", layout.chunk_tokens,
                                       " (--chunk-tokens); got ", residual));
  }
  const absl::Status fits = read->Check(layout.chunk_tokens, layout.head_dim);
  if (!fits.ok()) return OfQuantization(fits.message());
  return *read;
}

}  // namespace

const char* KvStrategyName(KvStrategy strategy) {
  return kStrategies[static_cast<size_t>(strategy)].name;
}

std::string KvStrategyNames() {
  return absl::StrJoin(kStrategies, ", ",
                       [](std::string* out, const auto& known) { out->append(known.name); });
}

absl::StatusOr<KvChoice> ChooseKv(const RequestedKv& requested, const KvChoice& fallback,
                                  const KvLayout& layout, bool on_device) {
  KvChoice choice = fallback;
  if (!requested.cache.empty()) {
    const std::optional<KvStrategy> strategy = StrategyOf(requested.cache, on_device);
    if (!strategy.has_value()) return Unknown("kv_cache", requested.cache);
    choice.strategy = *strategy;
  }
  const bool quantized = choice.strategy == KvStrategy::kQuantized;
  if (!quantized && !requested.quantization.empty()) {
    return OfQuantization(absl::StrCat("must be empty unless kv_cache is quantized; kv_cache is ",
                                       KvStrategyName(choice.strategy)));
  }
  if (!quantized) {
    choice.quantization = {};
  } else if (!choice.quantization.is_on() || !requested.quantization.empty()) {
    const absl::StatusOr<KvQuantization> options = QuantizationOf(requested.quantization, layout);
    if (!options.ok()) return options.status();
    choice.quantization = *options;
  }
  return choice;
}

absl::StatusOr<KvChoice> ModelKvChoice(const GenerationDefaults& model, const KvLayout& layout,
                                       bool on_device) {
  const std::string& cache_implementation = model.cache_implementation;
  KvChoice choice;
  if (cache_implementation.empty() || cache_implementation == "hybrid" ||
      cache_implementation == "sliding_window") {
    return choice;
  }
  const std::optional<KvStrategy> strategy = StrategyOf(cache_implementation, on_device);
  if (!strategy.has_value()) {
    return Unknown("generation_config.json: cache_implementation", cache_implementation);
  }
  absl::StatusOr<KvChoice> made = ChooseKv(
      {cache_implementation, *strategy == KvStrategy::kQuantized ? model.kv_quantization : ""},
      choice, layout, on_device);
  if (made.ok()) return made;
  return absl::InvalidArgumentError(
      absl::StrCat("generation_config.json: cache_config: ", made.status().message(),
                   "; give --kv-cache to override it"));
}

}  // namespace hearth
