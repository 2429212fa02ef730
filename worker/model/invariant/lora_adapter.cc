#include "worker/model/invariant/lora_adapter.h"

#include <cassert>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/model/invariant/invariant_weights.h"
#include "worker/model/model_file.h"
#include "worker/model/model_json.h"
#include "worker/model/tensor_files.h"
#include "worker/model/weights.h"

namespace hearth {
namespace {

using Json = nlohmann::json;

constexpr int kMaxRank = 4096;
constexpr double kMaxScale = 1e6;
constexpr char kConfigFile[] = "/adapter_config.json", kTensorFile[] = "/adapter_model.safetensors";

// If any of these fields is set, PEFT computes something else than LowRank, so the adapter is
// refused.
constexpr const char* kRefusedFields[] = {
    "alora_invocation_tokens", "alpha_pattern",     "arrow_config",      "bdlora_config",
    "fan_in_fan_out",          "kasa_config",       "layer_replication", "lora_bias",
    "modules_to_save",         "monteclora_config", "rank_pattern",      "target_parameters",
    "trainable_token_indices", "use_bdlora",        "use_dora",          "use_qalora",
    "velora_config",
};

struct AdapterConfig {
  int rank = 0;
  double scale = 0;
};

bool IsUnset(const Json& value) {
  return value.is_null() || value == false ||
         ((value.is_object() || value.is_array()) && value.empty());
}

absl::StatusOr<AdapterConfig> ReadConfig(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadModelFile(path, kMaxJsonFileBytes);
  if (!text.ok()) {
    return absl::Status(text.status().code(), absl::StrCat(text.status().message(),
                                                           "; an adapter must be a folder in the "
                                                           "format of PEFT's save_pretrained"));
  }
  const absl::StatusOr<Json> json = ParseModelJson(*text);
  if (!json.ok())
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", json.status().message()));
  if (!json->is_object())
    return absl::InvalidArgumentError(absl::StrCat(path, ": must be a JSON object"));
  const auto field_of = [&json](const char* field) -> const Json& {
    return JsonAt(*json, {field});
  };
  const auto refuse = [&](const char* field, const char* why) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": field ", field, " = ", JsonExcerpt(field_of(field)), ": ", why));
  };
  if (field_of("peft_type") != "LORA") return refuse("peft_type", "must be LORA");
  for (const char* field : kRefusedFields) {
    if (!IsUnset(field_of(field))) return refuse(field, "is not supported");
  }
  if (json->contains("bias") && field_of("bias") != "none") return refuse("bias", "must be none");
  const Json &rank = field_of("r"), &alpha = field_of("lora_alpha");
  if (!rank.is_number_integer() || rank < 1 || rank > kMaxRank) {
    return refuse("r", "must be an integer in [1, 4096]");
  }
  if (!alpha.is_number() || !std::isfinite(alpha.get<double>())) {
    return refuse("lora_alpha", "must be a number");
  }
  const Json& start = field_of("init_lora_weights");
  if (!start.is_null() && !start.is_boolean() && start != "gaussian" && start != "eva" &&
      start != "orthogonal") {
    return refuse("init_lora_weights", "is not supported: it changes the base model's weights");
  }
  const Json& rslora = field_of("use_rslora");
  if (!rslora.is_null() && !rslora.is_boolean())
    return refuse("use_rslora", "must be true or false");
  AdapterConfig config;
  config.rank = rank.get<int>();
  const double divisor = rslora == true ? std::sqrt(config.rank) : config.rank;
  config.scale = alpha.get<double>() / divisor;
  if (std::abs(config.scale) > kMaxScale) return refuse("lora_alpha", "gives a scale above 1e6");
  return config;
}

// A projection of a layer: its name in the model, and which outputs of which product it computes.
struct Projection {
  const char* name;
  std::vector<LowRank> AdapterLayer::*place;
  int64_t inputs, outputs, first_output;
};

std::vector<Projection> ProjectionsOf(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const int64_t queries = int64_t{config.attention.num_heads} * config.attention.head_dim;
  const int64_t keys = int64_t{config.attention.num_kv_heads} * config.attention.head_dim;
  return {{"self_attn.q_proj", &AdapterLayer::qkv, hidden, queries, 0},
          {"self_attn.k_proj", &AdapterLayer::qkv, hidden, keys, queries},
          {"self_attn.v_proj", &AdapterLayer::qkv, hidden, keys, queries + keys},
          {"self_attn.o_proj", &AdapterLayer::out, queries, hidden, 0},
          {"mlp.gate_proj", &AdapterLayer::gate, hidden, inner, 0},
          {"mlp.up_proj", &AdapterLayer::up, hidden, inner, 0},
          {"mlp.down_proj", &AdapterLayer::down, inner, hidden, 0}};
}

absl::Status CheckTensor(const TensorView& view, int64_t rows, int64_t columns) {
  if (view.shape != std::vector<int64_t>{rows, columns}) {
    return absl::InvalidArgumentError(
        absl::StrCat(view.file, ": tensor ", view.name, " has shape ", view.ShapeText(),
                     "; the model and the adapter's r require [", rows, ", ", columns, "]"));
  }
  return CheckDtype(view);
}

PackedWeights PackOne(const TensorView& view, ParallelFor parallel) {
  const WeightRows rows{view.data.get(), view.shape[0], *view.type};
  return PackedWeights::Pack({&rows, 1}, *view.type, view.shape[1], parallel);
}

// Returns an adapter's tensors by the last part of their names, such as
// "layers.0.mlp.up_proj.lora_A.weight". PEFT adds the names of its wrapper classes as prefix.
absl::StatusOr<std::map<std::string, TensorView>> ByCanonicalName(const TensorFiles& files) {
  std::map<std::string, TensorView> tensors;
  for (const auto& [name, view] : files.tensors()) {
    const size_t begin = name.rfind(".layers.");
    const std::string canonical = begin == name.npos ? name : name.substr(begin + 1);
    const auto [at, added] = tensors.emplace(canonical, view);
    if (!added) {
      return absl::InvalidArgumentError(absl::StrCat(view.file, ": tensors ", at->second.name,
                                                     " and ", name,
                                                     " belong to the same projection"));
    }
  }
  if (!tensors.empty()) return tensors;
  return absl::InvalidArgumentError(absl::StrCat(files.files().at(0)->path, " has no tensors"));
}

}  // namespace

const AdapterLayer& LoraAdapter::layer(int number) const {
  assert(number >= 0 && static_cast<size_t>(number) < layers_.size());
  return layers_[static_cast<size_t>(number)];
}

absl::StatusOr<std::shared_ptr<const LoraAdapter>> LoraAdapter::Load(const std::string& dir,
                                                                     const ModelConfig& config,
                                                                     ThreadPool* pool) {
  const absl::StatusOr<AdapterConfig> read = ReadConfig(dir + kConfigFile);
  if (!read.ok()) return read.status();
  const absl::StatusOr<TensorFiles> files = TensorFiles::OpenFile(dir + kTensorFile);
  if (!files.ok()) return files.status();
  auto tensors = ByCanonicalName(*files);
  if (!tensors.ok()) return tensors.status();
  const auto parallel = [pool](int64_t parts, KernelPart body) {
    pool->Run(parts, [&](int64_t part, int) { body(part); });
  };
  std::shared_ptr<LoraAdapter> adapter(new LoraAdapter());
  adapter->rank_ = read->rank;
  std::vector<TensorView> used;
  for (auto& [name, view] : *tensors) {
    used.push_back(view);
    used.back().name = name;
  }
  WeightsReader reader(*files, used, /*cache_dir=*/"", pool);
  for (int number = 0; number < config.num_layers; ++number) {
    AdapterLayer& layer = adapter->layers_.emplace_back();
    for (const Projection& to : ProjectionsOf(config)) {
      const std::string name = absl::StrCat("layers.", number, ".", to.name);
      const auto at_a = tensors->find(name + ".lora_A.weight");
      const auto at_b = tensors->find(name + ".lora_B.weight");
      if (at_a == tensors->end() && at_b == tensors->end()) continue;
      if (at_a == tensors->end() || at_b == tensors->end()) {
        return absl::InvalidArgumentError(
            absl::StrCat(dir, kTensorFile, ": ", name, " must have both lora_A and lora_B"));
      }
      TensorView a = at_a->second, b = at_b->second;
      absl::Status fits = CheckTensor(a, read->rank, to.inputs);
      if (fits.ok()) fits = CheckTensor(b, to.outputs, read->rank);
      a.name = at_a->first;
      b.name = at_b->first;
      if (fits.ok()) fits = reader.Read({&a, &b});
      if (!fits.ok()) return fits;
      LowRank& delta = (layer.*to.place).emplace_back();
      delta.a = PackOne(a, parallel);
      delta.b = PackOne(b, parallel);
      delta.scale = static_cast<float>(read->scale);
      delta.first_output = to.first_output;
      adapter->bytes_ += delta.a.bytes() + delta.b.bytes();
      tensors->erase(at_a);
      tensors->erase(at_b);
    }
  }
  if (!tensors->empty()) {
    const TensorView& view = tensors->begin()->second;
    return absl::InvalidArgumentError(
        absl::StrCat(view.file, ": tensor ", view.name, " belongs to no projection of the model"));
  }
  const absl::StatusOr<Digest> digest = reader.Finish(absl::Now());
  if (!digest.ok()) return digest.status();
  const float scale = static_cast<float>(read->scale);
  char bits[sizeof(scale)];
  std::memcpy(bits, &scale, sizeof(scale));
  adapter->digest_ = Sha256(absl::StrCat("hearth.adapter.v1", DigestBytes(*digest),
                                         absl::string_view(bits, sizeof(bits))));
  return std::shared_ptr<const LoraAdapter>(std::move(adapter));
}

}  // namespace hearth
