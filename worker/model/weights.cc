#include "worker/model/weights.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace hearth {
namespace {

bool IsVision(const std::string& name) {
  const absl::string_view bare = absl::StripPrefix(name, "model.");
  return absl::StartsWith(bare, "vision_tower.") ||
         absl::StartsWith(bare, "multi_modal_projector.");
}

// Takes tensors out of a checkpoint by canonical name and remembers which were taken.
class Finder {
 public:
  Finder(const Safetensors& files, std::string prefix)
      : files_(files), prefix_(std::move(prefix)) {}

  void Take(const std::string& name, std::vector<int64_t> shape, TensorView* out) {
    TakeFull(prefix_ + name, name, std::move(shape), out);
  }
  void TakeFull(const std::string& full, const std::string& canonical, std::vector<int64_t> shape,
                TensorView* out) {
    auto it = files_.tensors().find(full);
    if (it == files_.tensors().end()) return Refuse(absl::StrCat("tensor ", full, " is missing"));
    const TensorView& view = it->second;
    if (view.shape != shape) {
      return Refuse(absl::StrCat(view.file, ": tensor ", full, " has shape ", view.ShapeText(),
                                 ", the config asks for [", absl::StrJoin(shape, ", "), "]"));
    }
    if (absl::Status status = CheckDtype(view); !status.ok()) return Fail(status);
    taken_.insert(full);
    *out = view;
    out->name = canonical;
    used_.push_back(*out);
  }
  void Refuse(const std::string& message) { Fail(absl::InvalidArgumentError(message)); }
  void Fail(const absl::Status& status) { status_.Update(status); }
  bool Taken(const std::string& full) const { return taken_.count(full) > 0; }
  const absl::Status& status() const { return status_; }
  std::vector<TensorView> TakeUsed() { return std::move(used_); }

 private:
  const Safetensors& files_;
  const std::string prefix_;
  std::set<std::string> taken_;
  std::vector<TensorView> used_;
  absl::Status status_;
};

// The text before "embed_tokens.weight" in the tensor's name, or nullptr.
const char* FindPrefix(const Safetensors& files) {
  for (const char* prefix : {"model.", "language_model.model.", "model.language_model."}) {
    if (files.tensors().count(absl::StrCat(prefix, "embed_tokens.weight")) > 0) return prefix;
  }
  return nullptr;
}

void TakeLayer(Finder* finder, const ModelConfig& config, int layer, LayerTensors* out) {
  const std::string base = absl::StrCat("layers.", layer, ".");
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const AttentionConfig& attention = config.attention;
  const int64_t queries = int64_t{attention.num_heads} * attention.head_dim;
  const int64_t keys = int64_t{attention.num_kv_heads} * attention.head_dim;
  finder->Take(base + "input_layernorm.weight", {hidden}, &out->input_norm);
  finder->Take(base + "self_attn.q_proj.weight", {queries, hidden}, &out->q);
  finder->Take(base + "self_attn.k_proj.weight", {keys, hidden}, &out->k);
  finder->Take(base + "self_attn.v_proj.weight", {keys, hidden}, &out->v);
  finder->Take(base + "self_attn.q_norm.weight", {attention.head_dim}, &out->q_norm);
  finder->Take(base + "self_attn.k_norm.weight", {attention.head_dim}, &out->k_norm);
  finder->Take(base + "self_attn.o_proj.weight", {hidden, queries}, &out->o);
  finder->Take(base + "post_attention_layernorm.weight", {hidden}, &out->post_attention_norm);
  finder->Take(base + "pre_feedforward_layernorm.weight", {hidden}, &out->pre_feedforward_norm);
  finder->Take(base + "mlp.gate_proj.weight", {inner, hidden}, &out->gate);
  finder->Take(base + "mlp.up_proj.weight", {inner, hidden}, &out->up);
  finder->Take(base + "mlp.down_proj.weight", {hidden, inner}, &out->down);
  finder->Take(base + "post_feedforward_layernorm.weight", {hidden}, &out->post_feedforward_norm);
}

// Whatever is neither taken nor skipped on purpose means that checkpoint and config disagree.
absl::Status CheckRest(const Safetensors& files, const Finder& finder, bool tied,
                       std::vector<std::string>* notes) {
  int vision = 0;
  for (const auto& [name, view] : files.tensors()) {
    if (finder.Taken(name)) continue;
    if (IsVision(name)) {
      ++vision;
    } else if (tied && absl::EndsWith(name, "lm_head.weight")) {
      notes->push_back(absl::StrCat("tensor ", name, " ignored: the embeddings are tied"));
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(view.file, ": tensor ", name, " is not part of the model in config.json"));
    }
  }
  if (vision > 0) notes->push_back(absl::StrCat(vision, " vision tensors skipped: text only"));
  return absl::OkStatus();
}

}  // namespace

std::vector<TensorView*> LayerTensors::All() {
  return {&input_norm,
          &q,
          &k,
          &v,
          &q_norm,
          &k_norm,
          &o,
          &post_attention_norm,
          &gate,
          &pre_feedforward_norm,
          &up,
          &down,
          &post_feedforward_norm};
}

absl::StatusOr<ModelTensors> FindTensors(const Safetensors& files, const ModelConfig& config) {
  const char* prefix = FindPrefix(files);
  if (prefix == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(files.files().empty() ? "checkpoint" : files.files().front()->path,
                     ": tensor model.embed_tokens.weight is missing"));
  }
  Finder finder(files, prefix);
  ModelTensors result;
  const int64_t hidden = config.hidden_size, vocab = config.vocab_size;
  finder.Take("embed_tokens.weight", {vocab, hidden}, &result.embedding);
  finder.Take("norm.weight", {hidden}, &result.final_norm);
  result.layers.resize(config.num_layers);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    TakeLayer(&finder, config, layer, &result.layers[layer]);
  }
  result.tied = config.tie_word_embeddings;
  if (result.tied) {
    result.head = result.embedding;
  } else {
    const char* name = absl::StartsWith(prefix, "language_model.") ? "language_model.lm_head.weight"
                                                                   : "lm_head.weight";
    finder.TakeFull(name, "lm_head.weight", {vocab, hidden}, &result.head);
  }
  if (!finder.status().ok()) return finder.status();
  if (absl::Status s = CheckRest(files, finder, config.tie_word_embeddings, &result.notes);
      !s.ok()) {
    return s;
  }
  result.used = finder.TakeUsed();
  std::sort(result.used.begin(), result.used.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  return result;
}

}  // namespace hearth
