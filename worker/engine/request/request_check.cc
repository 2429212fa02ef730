#include "worker/engine/request/request_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/error_reason.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

// Returns an error if a beam-search request uses options that beam search does not support: it is
// greedy and has one answer.
absl::Status CheckSearch(const EngineRequest& request) {
  if (absl::Status status = request.search.Validate(); !status.ok()) return status;
  if (!request.searches()) return absl::OkStatus();
  std::string other;
  if (request.max_new_tokens == 0) other = "max_new_tokens 0";
  if (request.samples > 1) other = absl::StrCat("n ", request.samples);
  if (request.sampling.temperature > 0) {
    other = absl::StrCat("sampling.temperature ", request.sampling.temperature);
  }
  if (request.sampling.reports()) other = "logprobs";
  const TokenRules& rules = request.sampling.rules;
  if (rules.are_on() || !rules.stop_ids.empty()) other = "penalties, biases or token lists";
  if (request.sampling.min_p > 0) other = "sampling.min_p";
  if (request.sampling.prompt_logprobs.has_value()) other = "sampling.prompt_logprobs";
  if (request.hash_logits) other = "hash_logits";
  if (request.first_draw > 0) other = absl::StrCat("first_draw ", request.first_draw);
  if (other.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("beams: ", request.search.beams, " cannot be combined with ", other));
}

// Refuses options that conflict with a grammar: the grammar decides where the answer ends.
absl::Status CheckGrammar(const EngineRequest& request) {
  if (request.grammar == nullptr) return absl::OkStatus();
  std::string other;
  if (request.searches()) other = absl::StrCat("beams ", request.search.beams);
  if (request.ignore_eos) other = "ignore_eos";
  if (request.sampling.rules.min_tokens > 0) {
    other = absl::StrCat("sampling.min_tokens ", request.sampling.rules.min_tokens);
  }
  if (other.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("grammar: cannot be combined with ", other));
}

}  // namespace

absl::Status CheckRequest(const EngineRequest& request, const ModelConfig& config) {
  const size_t tokens = request.token_ids.size();
  if (tokens == 0) return absl::InvalidArgumentError("token_ids: the prompt is empty");
  const size_t context =
      std::min<size_t>(static_cast<size_t>(config.max_position_embeddings), kMaxPromptTokens);
  if (tokens > context) {
    return PromptTooLong("token_ids", context, tokens);
  }
  if (tokens == context && request.max_new_tokens > 0) {
    return PromptTooLong("max_new_tokens", context, tokens, /*free_tokens=*/1);
  }
  if (request.max_new_tokens > context - tokens) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat(
                          "max_new_tokens: ", request.max_new_tokens, " plus a prompt of ", tokens,
                          " tokens exceeds the model's context of ", context)),
                      kContextLengthExceeded);
  }
  for (size_t i = 0; i < tokens; ++i) {
    const int32_t id = request.token_ids[i];
    if (id < 0 || id >= config.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("token_ids[", i, "]: must be in [0, ", config.vocab_size, "); got ", id));
    }
  }
  const absl::Status cuts = ValidateCuts(request.breakpoints, static_cast<uint32_t>(tokens));
  if (!cuts.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("breakpoints: ", cuts.message()));
  }
  if (request.tenant.empty() || request.tenant.size() > kMaxTenantBytes) {
    return absl::InvalidArgumentError(absl::StrCat("tenant: must have 1 to ", kMaxTenantBytes,
                                                   " bytes; it has ", request.tenant.size()));
  }
  if (request.samples > 1 && request.max_new_tokens == 0) {
    return absl::InvalidArgumentError("n: must be 1 if max_new_tokens is 0");
  }
  if (request.samples < 1 || request.samples > kMaxSamples) {
    return absl::InvalidArgumentError(
        absl::StrCat("n: must be in [1, ", kMaxSamples, "]; got ", request.samples));
  }
  if (absl::Status search = CheckSearch(request); !search.ok()) return search;
  if (absl::Status grammar = CheckGrammar(request); !grammar.ok()) return grammar;
  absl::Status sampling = request.sampling.Validate();
  sampling.Update(request.sampling.rules.CheckIds(config.vocab_size, config.eos_token_ids.size()));
  return sampling;
}

absl::Status CheckPlaces(const EngineRequest& request, uint32_t max_running) {
  if (request.sequences() <= max_running) return absl::OkStatus();
  const absl::string_view what = request.searches() ? "beams: " : "n: ";
  return absl::InvalidArgumentError(absl::StrCat(what, "must be at most ", max_running,
                                                 ", the worker's --max-running; got ",
                                                 request.sequences()));
}

absl::Status CheckSpeculate(uint32_t tokens) {
  if (tokens <= kMostSpeculate) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("speculate: must be in [0, ", kMostSpeculate, "]; got ", tokens));
}

absl::Status CompleteRequest(const EngineOptions& options, const ModelRunner& model,
                             const KvLayout& layout, EngineRequest* request) {
  const bool invariant = layout.exactness == Exactness::kInvariant;
  const std::string& cache = request->requested_kv.cache;
  const absl::StatusOr<KvChoice> kv = ChooseKv(request->requested_kv, model.kv(), layout,
                                               invariant && model.device_kind() != "cpu");
  if (!kv.ok()) return kv.status();
  const auto not_here = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, " needs exactness invariant; this worker uses ", ExactnessName(layout.exactness)));
  };
  if (!invariant && !cache.empty() && cache != KvStrategyName(KvStrategy::kDynamic))
    return not_here(absl::StrCat("kv_cache: ", cache));
  request->kv = *kv;
  if (request->sampling.prompt_logprobs.has_value()) {
    if (!invariant) return not_here("sampling.prompt_logprobs:");
    // Restored tokens have no logits, so every prompt token must be computed: do not read from the
    // cache.
    request->cache = request->writes() ? CacheMode::kWrite : CacheMode::kOff;
  }
  // Do not use the cache if the KV has different bits from the worker's default.
  if (!SameBits(*kv, model.kv())) request->cache = CacheMode::kOff;
  // Outside class invariant, guessed rows would change the bits of other rows of the step.
  const bool may_guess = invariant && !request->searches();
  if (!request->speculate.has_value()) request->speculate = may_guess ? options.speculate : 0;
  if (*request->speculate > 0 && request->searches()) {
    return absl::InvalidArgumentError(
        absl::StrCat("speculate: must be 0 with beams; got ", *request->speculate));
  }
  if (*request->speculate > 0 && !invariant)
    return not_here(absl::StrCat("speculate: ", *request->speculate));
  absl::Status may = CheckSpeculate(*request->speculate);
  if (!may.ok()) return may;
  if (request->searches() && !invariant) return not_here("beams: beam search");
  if (request->searches() && request->kv.strategy == KvStrategy::kStatic) {
    return absl::InvalidArgumentError("beams: not supported with kv_cache static");
  }
  return CheckAdapterName(request->adapter, model.adapters());
}

absl::Status CheckAdapterName(const std::string& name, absl::Span<const ModelAdapter> adapters) {
  if (name.empty() || AdapterNumber(adapters, name).has_value()) return absl::OkStatus();
  const auto add = [](std::string* out, const ModelAdapter& adapter) { out->append(adapter.name); };
  return absl::InvalidArgumentError(absl::StrCat(
      "adapter: this worker has ", adapters.empty() ? "none (--adapter NAME=DIR)" : "only ",
      absl::StrJoin(adapters, ", ", add), "; got \"", name, "\""));
}

}  // namespace hearth
