#include "worker/engine/runner/model_fingerprint.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <utility>
#include <vector>

#include "worker/model/torch/gemma.h"

namespace hearth {
namespace {

constexpr uint64_t kObjectLayoutVersion = 1;
// Version of the fingerprint fields of class exact, and of the canary's steps. Version 2 added the
// second run of steps, the step of one row, and cpu_capability.
constexpr uint64_t kFingerprintVersion = 2;

// Row counts of the canary's steps: a whole chunk, then a few rows, then one row as in decoding.
constexpr int kFewRows = 7;
constexpr int kCanaryRun = kFewRows + 1;  // rows after the chunk
// Minimum position of the canary's second run. Kernels split a sum by its length, and a global
// layer sums over all keys.
constexpr int kFarKeys = 4096;

uint64_t Count(int value) {
  assert(value >= 0);
  return static_cast<uint64_t>(value);
}

// Two runs of `run` tokens each: the first at position 0, the second at far_begin.
struct CanaryPlan {
  int run = 0;
  int far_begin = 0;  // 0: the context is too short for a second run
};

CanaryPlan PlanCanary(const ModelConfig& config, int chunk_tokens) {
  const int context = config.max_position_embeddings;
  CanaryPlan plan;
  plan.run = std::min(chunk_tokens + kCanaryRun, context);
  // The second run must also begin after the first window, so that each of its rows has a full
  // window.
  const int wanted = std::max(kFarKeys, config.attention.sliding_window);
  const int begin = (wanted + chunk_tokens - 1) / chunk_tokens * chunk_tokens;
  const int last = (context - plan.run) / chunk_tokens * chunk_tokens;
  plan.far_begin = std::min(begin, last);
  return plan;
}

// The KV rows of one canary run: for each layer, one slice of `run` tokens.
class CanaryRows {
 public:
  CanaryRows(const KvLayout& layout, int run)
      : run_(run), layers_(layout.layers.size(), std::vector<std::byte>(layout.SliceBytes(run))) {}

  // Copies rows [begin, end) of `kv`. The rows belong to the run that began at position
  // `run_begin`.
  void Take(const KvCache& kv, int run_begin, int begin, int end) {
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      kv.CopyOut(static_cast<int>(layer), begin, end, run_begin, run_, layers_[layer].data());
    }
  }
  // Fills `kv` up to `length` tokens with repeated copies of these rows.
  void Repeat(int length, KvCache* kv) const {
    kv->BeginRestore(length);
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      const int number = static_cast<int>(layer);
      for (int at = kv->first_held(number); at < length; at += run_) {
        kv->CopyIn(number, at, std::min(at + run_, length), at, run_, layers_[layer].data());
      }
    }
    kv->FinishRestore(length);
  }
  void AppendDigest(std::string* out) const {
    for (const std::vector<std::byte>& rows : layers_) {
      const Digest digest = Sha256({reinterpret_cast<const char*>(rows.data()), rows.size()});
      out->append(digest.begin(), digest.end());
    }
  }

 private:
  const int run_;
  std::vector<std::vector<std::byte>> layers_;
};

// Runs the canary's steps (a chunk, a few rows, one row) from position `begin`, the current length
// of `kv`.
absl::Status RunCanary(const Gemma& gemma, int chunk_tokens, int begin, KvCache* kv,
                       CanaryRows* rows) {
  const int end = begin + PlanCanary(gemma.config(), chunk_tokens).run;
  int at = begin;
  for (const int step : {chunk_tokens, kFewRows, 1}) {
    std::vector<int32_t> tokens;
    for (int i = at; i < std::min(at + step, end); ++i) {
      tokens.push_back(SpreadToken(i, gemma.config().vocab_size));
    }
    if (tokens.empty()) break;
    if (absl::Status status = gemma.Step(kv, tokens, nullptr); !status.ok()) return status;
    const int next = at + static_cast<int>(tokens.size());
    rows->Take(*kv, begin, at, next);
    at = next;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Fingerprint> FingerprintOf(const ModelConfig& config, const KvLayout& layout,
                                          const Digest& weights_digest,
                                          const ComputeIdentity& identity) {
  std::string layer_types;
  for (LayerGroup group : layout.layers) {
    layer_types.push_back(group == LayerGroup::kGlobal ? 'g' : 'l');
  }
  std::vector<FingerprintField> fields = {
      {"model", std::string("gemma3_text")},
      {"layers", Count(config.num_layers)},
      {"layer_types", layer_types},
      {"heads", Count(config.attention.num_heads)},
      {"kv_heads", uint64_t{layout.kv_heads}},
      {"head_dim", uint64_t{layout.head_dim}},
      {"hidden_size", Count(config.hidden_size)},
      {"intermediate_size", Count(config.intermediate_size)},
      {"vocab_size", Count(config.vocab_size)},
      {"window", uint64_t{layout.window}},
      {"rope_theta_global", config.rope.global.theta},
      {"rope_theta_local", config.rope.local.theta},
      {"rope_factor_global", config.rope.global.factor},
      {"rope_factor_local", config.rope.local.factor},
      {"query_pre_attn_scalar", config.attention.query_pre_attn_scalar},
      {"attn_logit_softcap", config.attention.logit_softcap},
      {"final_logit_softcap", config.final_logit_softcap},
      {"rms_norm_eps", config.rms_norm_eps},
      {"activation", config.activation},
      {"weights_sha256", DigestHex(weights_digest)},
      {"adapters_sha256", identity.adapter.empty() ? std::string("none") : identity.adapter},
      {"kv_dtype", std::string(KvDtypeName(layout.dtype))},
      {"chunk_tokens", uint64_t{layout.chunk_tokens}},
      {"object_layout", kObjectLayoutVersion},
      {"codec", CodecText(layout.quantization)},
      {"exactness", std::string(ExactnessName(layout.exactness))},
  };
  for (const auto& [kind, rope] :
       {std::pair("global", config.rope.global), std::pair("local", config.rope.local)}) {
    if (rope.ramp_span == 0) continue;
    fields.push_back({absl::StrCat("rope_ramp_begin_", kind), double{rope.ramp_begin}});
    fields.push_back({absl::StrCat("rope_ramp_span_", kind), double{rope.ramp_span}});
    fields.push_back({absl::StrCat("rope_attention_factor_", kind), double{rope.attention_factor}});
  }
  if (layout.exactness == Exactness::kExact) {
    fields.push_back({"device_kind", identity.device_kind});
    fields.push_back({"compute_version", identity.compute_version});
    if (!identity.cpu_capability.empty()) {  // the bits of a device depend on neither of these
      fields.push_back({"cpu_capability", identity.cpu_capability});
      fields.push_back({"threads", Count(identity.threads)});
    }
    fields.push_back({"fingerprint_version", kFingerprintVersion});
    fields.push_back({"canary_sha256", DigestHex(identity.canary)});
  }
  if (layout.exactness == Exactness::kInvariant) {
    fields.push_back({"compute_version", identity.compute_version});
    if (!identity.weights.empty()) fields.push_back({"weights", identity.weights});
    if (!identity.arithmetic.empty()) fields.push_back({"arithmetic", identity.arithmetic});
  }
  return Fingerprint::Create(std::move(fields));
}

int CanaryTokens(const ModelConfig& config, uint32_t chunk_tokens) {
  const CanaryPlan plan = PlanCanary(config, static_cast<int>(chunk_tokens));
  return plan.far_begin + plan.run;
}

absl::StatusOr<Digest> ComputeCanary(const Gemma& gemma, const KvLayout& layout, KvCache* kv) {
  const int chunk_tokens = static_cast<int>(layout.chunk_tokens);
  const CanaryPlan plan = PlanCanary(gemma.config(), chunk_tokens);
  assert(kv->length() == 0 && kv->capacity() >= CanaryTokens(gemma.config(), layout.chunk_tokens));
  CanaryRows rows(layout, plan.run);
  std::string digests;  // SHA-256 of each run's rows, one per layer
  if (absl::Status s = RunCanary(gemma, chunk_tokens, 0, kv, &rows); !s.ok()) return s;
  rows.AppendDigest(&digests);
  if (plan.far_begin > 0) {
    rows.Repeat(plan.far_begin, kv);
    if (absl::Status s = RunCanary(gemma, chunk_tokens, plan.far_begin, kv, &rows); !s.ok()) {
      return s;
    }
    rows.AppendDigest(&digests);
  }
  kv->Reset();
  return Sha256(digests);
}

}  // namespace hearth
