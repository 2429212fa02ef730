#include "worker/model_fingerprint.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "proto/restore_rule.h"

namespace hearth {
namespace {

// Two whole chunks and a short step: three shapes of matrix product, and a window that slides.
constexpr int kCanaryChunks = 2;
constexpr int kCanaryRemainder = 7;
constexpr uint64_t kObjectLayoutVersion = 1;

// Spread over the vocabulary; any fixed sequence would do.
int32_t CanaryToken(int position, int vocab_size) {
  constexpr int64_t kStride = 7919;  // a prime, so that no small vocabulary repeats early
  return static_cast<int32_t>((3 + position * kStride) % vocab_size);
}

uint64_t Count(int value) {
  assert(value >= 0);
  return static_cast<uint64_t>(value);
}

}  // namespace

KvLayout LayoutOf(const ModelConfig& config, KvDtype dtype, uint32_t chunk_tokens,
                  Exactness exactness) {
  KvLayout layout;
  layout.chunk_tokens = chunk_tokens;
  layout.window = static_cast<uint32_t>(config.sliding_window);
  layout.kv_heads = static_cast<uint32_t>(config.num_kv_heads);
  layout.head_dim = static_cast<uint32_t>(config.head_dim);
  layout.dtype = dtype;
  layout.exactness = exactness;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    layout.layers.push_back(config.is_local(layer) ? LayerGroup::kLocal : LayerGroup::kGlobal);
  }
  return layout;
}

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
      {"heads", Count(config.num_heads)},
      {"kv_heads", uint64_t{layout.kv_heads}},
      {"head_dim", uint64_t{layout.head_dim}},
      {"hidden_size", Count(config.hidden_size)},
      {"intermediate_size", Count(config.intermediate_size)},
      {"vocab_size", Count(config.vocab_size)},
      {"window", uint64_t{layout.window}},
      {"rope_theta_global", config.global_rope.theta},
      {"rope_theta_local", config.local_rope.theta},
      {"rope_factor_global", config.global_rope.linear_factor},
      {"rope_factor_local", config.local_rope.linear_factor},
      {"query_pre_attn_scalar", config.query_pre_attn_scalar},
      {"attn_logit_softcap", config.attn_logit_softcap},
      {"final_logit_softcap", config.final_logit_softcap},
      {"rms_norm_eps", config.rms_norm_eps},
      {"activation", config.activation},
      {"weights_sha256", DigestHex(weights_digest)},
      {"adapters_sha256", std::string("none")},
      {"kv_dtype", std::string(KvDtypeName(layout.dtype))},
      {"chunk_tokens", uint64_t{layout.chunk_tokens}},
      {"object_layout", kObjectLayoutVersion},
      {"codec", std::string("raw")},
      {"exactness", std::string(layout.exactness == Exactness::kExact ? "exact" : "portable")},
  };
  if (layout.exactness == Exactness::kExact) {
    fields.push_back({"device_kind", identity.device_kind});
    fields.push_back({"compute_version", identity.compute_version});
    fields.push_back({"threads", Count(identity.threads)});
    fields.push_back({"canary_sha256", DigestHex(identity.canary)});
  }
  return Fingerprint::Create(std::move(fields));
}

int CanaryTokens(const ModelConfig& config, uint32_t chunk_tokens) {
  const int tokens = kCanaryChunks * static_cast<int>(chunk_tokens) + kCanaryRemainder;
  return std::min(tokens, config.max_position_embeddings);
}

absl::StatusOr<Digest> ComputeCanary(const Gemma& gemma, const KvLayout& layout, KvCache* kv) {
  const int tokens = CanaryTokens(gemma.config(), layout.chunk_tokens);
  assert(kv->length() == 0 && kv->capacity() >= tokens);
  std::vector<int32_t> prompt;
  for (int i = 0; i < tokens; ++i) prompt.push_back(CanaryToken(i, gemma.config().vocab_size));

  std::string digests;  // of each step's rows, all layers
  std::vector<char> rows;
  int begin = 0;
  for (uint32_t step_end : StepEnds(tokens, {}, layout.chunk_tokens)) {
    const int end = static_cast<int>(step_end);
    const int count = end - begin;
    const auto step = absl::MakeConstSpan(prompt).subspan(begin, count);
    if (absl::Status status = gemma.Step(kv, step, nullptr); !status.ok()) return status;
    const size_t slice_bytes = layout.SliceBytes(count);
    rows.resize(layout.layers.size() * slice_bytes);
    for (size_t layer = 0; layer < layout.layers.size(); ++layer) {
      kv->CopyOut(static_cast<int>(layer), begin, end, begin, count,
                  reinterpret_cast<std::byte*>(rows.data() + layer * slice_bytes));
    }
    const Digest digest = Sha256(absl::string_view(rows.data(), rows.size()));
    digests.append(digest.begin(), digest.end());
    begin = end;
  }
  kv->Reset();
  return Sha256(digests);
}

}  // namespace hearth
