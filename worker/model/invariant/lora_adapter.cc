#include "worker/model/invariant/lora_adapter.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "worker/model/invariant/invariant_weights.h"
#include "worker/model/safetensors.h"
#include "worker/model/weights_digest.h"

namespace hearth {
namespace {

using Json = nlohmann::json;

constexpr int kMaxRank = 4096, kMaxDepth = 16;
constexpr double kMaxScale = 1e6;
constexpr char kConfigFile[] = "/adapter_config.json", kTensorFile[] = "/adapter_model.safetensors";

// With any of these PEFT computes something else than LowRank says.
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
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(path, ignored);
  std::ifstream in;
  if (is_file) in.open(path, std::ios::binary);
  if (!in.is_open()) {
    return absl::NotFoundError(absl::StrCat(
        path, ": cannot be read; an adapter is a folder as PEFT's save_pretrained writes it"));
  }
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  bool is_deep = false;  // what is copied or written out takes a stack for each level
  const auto flat = [&](int depth, Json::parse_event_t, Json&) {
    is_deep |= depth > kMaxDepth;
    return depth <= kMaxDepth;
  };
  const Json json = Json::parse(text, flat, /*allow_exceptions=*/false);
  if (is_deep || !json.is_object())
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object of a few levels"));
  const auto refuse = [&](const char* field, const char* why) {
    const Json value = json.value(field, Json());
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": field ", field, " = ",
        value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace).substr(0, 200),
        ": ", why));
  };
  if (json.value("peft_type", Json()) != "LORA")
    return refuse("peft_type", "only LORA is supported");
  for (const char* field : kRefusedFields) {
    if (!IsUnset(json.value(field, Json()))) return refuse(field, "is not supported");
  }
  if (json.value("bias", Json("none")) != "none") return refuse("bias", "only none is supported");
  const Json rank = json.value("r", Json()), alpha = json.value("lora_alpha", Json());
  if (!rank.is_number_integer() || rank < 1 || rank > kMaxRank) {
    return refuse("r", "must be an integer in [1, 4096]");
  }
  if (!alpha.is_number() || !std::isfinite(alpha.get<double>())) {
    return refuse("lora_alpha", "must be a number");
  }
  const Json start = json.value("init_lora_weights", Json());
  if (!start.is_null() && !start.is_boolean() && start != "gaussian" && start != "eva" &&
      start != "orthogonal") {
    return refuse("init_lora_weights", "is not supported: PEFT changes the model's own weights");
  }
  const Json rslora = json.value("use_rslora", Json());
  if (!rslora.is_null() && !rslora.is_boolean())
    return refuse("use_rslora", "must be true or false");
  AdapterConfig config;
  config.rank = rank.get<int>();
  const double divisor = rslora == true ? std::sqrt(config.rank) : config.rank;
  config.scale = alpha.get<double>() / divisor;
  if (std::abs(config.scale) > kMaxScale) return refuse("lora_alpha", "is out of range");
  return config;
}

// A projection of a layer: where it is in the model and among the outputs of a product.
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
                     "; the model and the adapter's r ask for [", rows, ", ", columns, "]"));
  }
  return CheckDtype(view);
}

PackedWeights PackOne(const TensorView& view, ParallelFor parallel) {
  const WeightRows rows{view.data, view.shape[0]};
  return PackedWeights::Pack({&rows, 1}, ElementTypeOf(view), view.shape[1], parallel);
}

// Takes an adapter's pairs of tensors out of its file, by the end of their names: PEFT puts the
// names of the classes that it wraps a model in before it.
class PairFinder {
 public:
  explicit PairFinder(const Safetensors& files) : files_(files) {}

  // The tensor whose name ends with `end`; null: there is none. An error: there are two.
  absl::StatusOr<const TensorView*> Take(const std::string& end) {
    const TensorView* found = nullptr;
    for (const auto& [name, view] : files_.tensors()) {
      if (!absl::EndsWith(name, end)) continue;
      if (found != nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(view.file, ": tensors ", found->name,
                                                       " and ", name, " are of one projection"));
      }
      found = &view;
    }
    if (found == nullptr) return nullptr;
    TensorView used = *found;
    used.name = end.substr(1);
    used_.push_back(std::move(used));
    taken_.push_back(found->name);
    return found;
  }
  absl::Status CheckAllTaken() const {
    for (const auto& [name, view] : files_.tensors()) {
      if (std::find(taken_.begin(), taken_.end(), name) != taken_.end()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(view.file, ": tensor ", name, " is of no projection of the model's layers"));
    }
    if (!taken_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(files_.files().at(0), " has no tensors"));
  }
  // By canonical name, in order.
  std::vector<TensorView> used() const {
    std::vector<TensorView> sorted = used_;
    std::sort(sorted.begin(), sorted.end(),
              [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
    return sorted;
  }

 private:
  const Safetensors& files_;
  std::vector<TensorView> used_;
  std::vector<std::string> taken_;
};

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
  const absl::StatusOr<Safetensors> files = Safetensors::OpenFile(dir + kTensorFile);
  if (!files.ok()) return files.status();
  const auto parallel = [pool](int64_t parts, KernelPart body) {
    pool->Run(parts, [&](int64_t part, int) { body(part); });
  };
  std::shared_ptr<LoraAdapter> adapter(new LoraAdapter());
  adapter->rank_ = read->rank;
  PairFinder finder(*files);
  for (int number = 0; number < config.num_layers; ++number) {
    AdapterLayer& layer = adapter->layers_.emplace_back();
    for (const Projection& to : ProjectionsOf(config)) {
      const std::string name = absl::StrCat(".layers.", number, ".", to.name);
      const auto a = finder.Take(name + ".lora_A.weight"), b = finder.Take(name + ".lora_B.weight");
      if (!a.ok()) return a.status();
      if (!b.ok()) return b.status();
      if (*a == nullptr && *b == nullptr) continue;
      if (*a == nullptr || *b == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(dir, kTensorFile, ": ", name.substr(1),
                                                       " has one of lora_A and lora_B only"));
      }
      absl::Status fits = CheckTensor(**a, read->rank, to.inputs);
      if (fits.ok()) fits = CheckTensor(**b, to.outputs, read->rank);
      if (!fits.ok()) return fits;
      LowRank& delta = (layer.*to.place).emplace_back();
      delta.a = PackOne(**a, parallel);
      delta.b = PackOne(**b, parallel);
      delta.scale = static_cast<float>(read->scale);
      delta.first_output = to.first_output;
      adapter->bytes_ += delta.a.bytes() + delta.b.bytes();
    }
  }
  if (absl::Status taken = finder.CheckAllTaken(); !taken.ok()) return taken;
  const float scale = static_cast<float>(read->scale);
  char bits[sizeof(scale)];
  std::memcpy(bits, &scale, sizeof(scale));
  adapter->digest_ =
      Sha256(absl::StrCat("hearth.adapter.v1", DigestBytes(DigestOfTensors(finder.used(), pool)),
                          absl::string_view(bits, sizeof(bits))));
  return std::shared_ptr<const LoraAdapter>(std::move(adapter));
}

}  // namespace hearth
