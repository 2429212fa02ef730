#include "worker/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "worker/model/gguf.h"
#include "worker/model/model_file.h"
#include "worker/model/model_json.h"

namespace hearth {

namespace {

using Json = nlohmann::json;

// Limits far above the values of all published models; products of these sizes fit in 64 bits.
constexpr int kMaxLayers = 1024;
constexpr int kMaxDimension = 1 << 20;
constexpr int kMaxVocabulary = 1 << 22;
constexpr int kMaxPositions = 1 << 24;

constexpr char kUnknownLayerType[] = "is not a supported layer type";

// Reads fields of one JSON object and records the first error, so that callers check status() once
// at the end. If a field is absent or null, its output keeps the default.
class Reader {
 public:
  Reader(const Json& object, const std::string& file) : object_(object), file_(file) {}

  const Json* Find(const char* name) const {
    auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  void Refuse(absl::string_view name, const Json& value, absl::string_view why) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat(file_, ": field ", name, " = ", JsonExcerpt(value), ": ", why));
    }
  }
  void Int(const char* name, int low, int high, int* out) {
    const Json* value = Find(name);
    if (value == nullptr) return;
    if (!value->is_number_integer() || *value < low || *value > high) {
      return Refuse(name, *value, absl::StrCat("must be an integer in [", low, ", ", high, "]"));
    }
    *out = value->get<int>();
  }
  void Positive(const char* name, double* out) {
    const Json* value = Find(name);
    if (value == nullptr) return;
    if (!value->is_number() || !(value->get<double>() > 0) ||
        !std::isfinite(value->get<double>())) {
      return Refuse(name, *value, "must be a number above 0");
    }
    *out = value->get<double>();
  }
  void Within(const char* name, double low, double high, double* out) {
    const Json* value = Find(name);
    if (value == nullptr) return;
    if (!value->is_number() || !(*value >= low && *value <= high)) {
      return Refuse(name, *value, absl::StrCat("must be a number in [", low, ", ", high, "]"));
    }
    *out = value->get<double>();
  }
  void Bool(const char* name, bool* out) {
    const Json* value = Find(name);
    if (value == nullptr) return;
    if (!value->is_boolean()) return Refuse(name, *value, "must be true or false");
    *out = value->get<bool>();
  }
  void Text(const char* name, std::string* out) {
    const Json* value = Find(name);
    if (value == nullptr) return;
    if (!value->is_string()) return Refuse(name, *value, "must be a string");
    *out = value->get<std::string>();
  }
  // Refuses null; for a field in which null does not mean the default.
  void RefuseNull(const char* name) {
    if (object_.contains(name) && Find(name) == nullptr) Refuse(name, nullptr, "must not be null");
  }
  // Refuses true, because this worker does not implement the feature.
  void MustBeFalse(const char* name) {
    bool value = false;
    Bool(name, &value);
    if (value) Refuse(name, value, "is not supported");
  }
  // Appends the token id or the list of token ids in the field to `ids`.
  void TokenIds(const char* name, std::vector<int32_t>* ids) {
    const Json* value = Find(name);
    if (value == nullptr) return;
    const Json list = value->is_array() ? *value : Json::array({*value});
    for (const Json& id : list) {
      if (!id.is_number_integer() || id < 0 || id >= kMaxVocabulary) {
        return Refuse(name, *value, "must be a token id or a list of token ids");
      }
      ids->push_back(id.get<int32_t>());
    }
  }
  const absl::Status& status() const { return status_; }

 private:
  const Json& object_;
  const std::string& file_;
  absl::Status status_;
};

absl::StatusOr<Json> ParseObject(absl::string_view text, const std::string& file) {
  absl::StatusOr<Json> json = ParseModelJson(text);
  if (!json.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": is not a readable JSON object: ", json.status().message()));
  }
  if (!json->is_object())
    return absl::InvalidArgumentError(absl::StrCat(file, ": is not a JSON object"));
  return json;
}

void ReadLayerTypes(Reader* reader, ModelConfig* config) {
  if (const Json* types = reader->Find("layer_types")) {
    if (!types->is_array() || types->size() != static_cast<size_t>(config->num_layers)) {
      return reader->Refuse("layer_types", *types, "must list one type for each layer");
    }
    for (const Json& type : *types) {
      if (type == "sliding_attention") {
        config->layer_types.push_back(LayerGroup::kLocal);
      } else if (type == "full_attention") {
        config->layer_types.push_back(LayerGroup::kGlobal);
      } else {
        return reader->Refuse("layer_types", type, kUnknownLayerType);
      }
    }
    return;
  }
  int pattern = 6;
  reader->Int("sliding_window_pattern", 1, kMaxLayers, &pattern);
  for (int layer = 0; layer < config->num_layers; ++layer) {
    config->layer_types.push_back((layer + 1) % pattern == 0 ? LayerGroup::kGlobal
                                                             : LayerGroup::kLocal);
  }
}

// Reads the YaRN parameters in the RoPE object of one kind of layer, and computes the factor and
// the ramp as the library transformers does.
void ReadYarn(Reader* reader, const ModelConfig& config, bool truncate, RopeConfig* rope) {
  const double dim = config.attention.head_dim;
  double original = config.max_position_embeddings, fast = 0, slow = 0, mscale = 0, all_dim = 0;
  reader->Within("factor", 1, 1e30, &rope->factor);
  reader->Positive("original_max_position_embeddings", &original);
  reader->Within("beta_fast", 0, 1e30, &fast);
  reader->Within("beta_slow", 0, 1e30, &slow);
  reader->Within("mscale", 0, 1e30, &mscale);
  reader->Within("mscale_all_dim", 0, 1e30, &all_dim);
  const bool has_both = mscale > 0 && all_dim > 0;
  const double log = 0.1 * std::log(rope->factor);
  double attention = has_both ? (log * mscale + 1) / (log * all_dim + 1) : log + 1;
  reader->Positive("attention_factor", &attention);
  // YaRN: returns the index of the column pair that makes `turns` rotations within the original
  // context. If `turns` is 0, uses `otherwise`, the default of transformers.
  const auto pair_of = [&](double turns, double otherwise) {
    turns = turns > 0 ? turns : otherwise;
    return dim * std::log(original / (turns * 2 * M_PI)) / (2 * std::log(rope->theta));
  };
  double low = pair_of(fast, 32), high = pair_of(slow, 1);
  if (truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  rope->ramp_begin = static_cast<float>(low);
  rope->ramp_span = static_cast<float>(low == high ? 0.001 : high - low);
  rope->attention_factor = static_cast<float>(attention);
  if (!(std::abs(low) <= kMaxDimension && std::abs(high - low) <= kMaxDimension))
    reader->Refuse("rope_theta", rope->theta,
                   absl::StrCat("is too close to 1 for YaRN: the ramp's begin or length exceeds ",
                                kMaxDimension, " column pairs"));
}

// Reads the RoPE object of one kind of layer. `truncate`: the field truncate of rope_parameters,
// which encloses the object.
void ReadRope(Reader* outer, const char* field, const Json& object, const std::string& file,
              const ModelConfig& config, bool truncate, RopeConfig* rope) {
  Reader reader(object, file);
  std::string type = "default";
  reader.Text("type", &type);  // older name of the field rope_type
  reader.Text("rope_type", &type);
  reader.Positive("rope_theta", &rope->theta);
  if (type == "linear" || type == "yarn") {
    if (reader.Find("factor") == nullptr) reader.Refuse("factor", nullptr, "is missing");
    if (type == "linear") reader.Positive("factor", &rope->factor);
    if (type == "yarn") ReadYarn(&reader, config, truncate, rope);
  } else if (type != "default") {
    reader.Refuse("rope_type", type, "must be default, linear or yarn");
  }
  bool its_own = truncate;
  reader.Bool("truncate", &its_own);
  if (its_own != truncate) {
    reader.Refuse("truncate", its_own,
                  "is ignored here by some versions of transformers; move it one level up, into "
                  "rope_parameters");
  }
  double partial = 1.0;
  reader.Positive("partial_rotary_factor", &partial);
  if (partial != 1.0) reader.Refuse("partial_rotary_factor", partial, "is not supported");
  if (!reader.status().ok()) outer->Refuse(field, object, reader.status().message());
}

// Reads the RoPE parameters as transformers 5 does. rope_parameters has one object for each kind of
// layer. rope_scaling (old style) is merged into the object of the global layers. If an object has
// no rope_theta, the old field is used. Other fields directly in rope_parameters are ignored;
// exception: truncate.
void ReadRopes(Reader* reader, const std::string& file, ModelConfig* config) {
  Json parameters = Json::object();
  if (const Json* given = reader->Find("rope_parameters")) parameters = *given;
  if (!parameters.is_object())
    return reader->Refuse("rope_parameters", parameters, "must be an object");
  for (const char* kind : {"full_attention", "sliding_attention"}) {
    Json& rope = parameters[kind];
    if (rope.is_null()) rope = Json::object();
    if (!rope.is_object()) return reader->Refuse("rope_parameters", rope, "must contain objects");
  }
  const Json* scaling = reader->Find("rope_scaling");
  const bool has_scaling = scaling != nullptr;
  if (has_scaling) {
    if (!scaling->is_object()) return reader->Refuse("rope_scaling", *scaling, "must be an object");
    if (!scaling->contains("rope_type") && scaling->value("type", Json("default")) != "default") {
      reader->Refuse("rope_scaling", *scaling,
                     "rename the field type to rope_type; transformers 5 ignores type");
    }
    parameters["full_attention"].update(*scaling);
  }
  reader->Positive("rope_theta", &config->rope.global.theta);
  reader->Positive("rope_local_base_freq", &config->rope.local.theta);
  bool truncate = true;
  Reader beside(parameters, file);
  beside.Bool("truncate", &truncate);
  if (!beside.status().ok())
    reader->Refuse("rope_parameters", parameters, beside.status().message());
  for (const auto& [kind, rope] : parameters.items()) {
    const bool is_global = kind == "full_attention";
    if (is_global || kind == "sliding_attention") {
      ReadRope(reader, is_global && has_scaling ? "rope_scaling" : "rope_parameters", rope, file,
               *config, truncate, is_global ? &config->rope.global : &config->rope.local);
    } else if (kind != "truncate") {
      config->notes.push_back(absl::StrCat(file, ": rope_parameters.", kind,
                                           " is ignored; set it for each kind of layer"));
    }
  }
}

void ReadAttention(Reader* reader, AttentionConfig* attention) {
  reader->Int("num_attention_heads", 1, kMaxLayers, &attention->num_heads);
  reader->Int("num_key_value_heads", 1, kMaxLayers, &attention->num_kv_heads);
  reader->Int("head_dim", 2, kMaxDimension, &attention->head_dim);
  reader->Int("sliding_window", 1, kMaxPositions, &attention->sliding_window);
  // transformers cannot build an attention mask with a null window
  reader->RefuseNull("sliding_window");
  reader->Positive("query_pre_attn_scalar", &attention->query_pre_attn_scalar);
  reader->Positive("attn_logit_softcapping", &attention->logit_softcap);
  if (attention->head_dim % 2 != 0) {
    reader->Refuse("head_dim", attention->head_dim, "must be even, for RoPE");
  }
  if (attention->num_heads % attention->num_kv_heads != 0) {
    reader->Refuse("num_key_value_heads", attention->num_kv_heads,
                   absl::StrCat("must divide num_attention_heads = ", attention->num_heads));
  }
}

void ReadSizes(Reader* reader, ModelConfig* config) {
  reader->Int("hidden_size", 1, kMaxDimension, &config->hidden_size);
  reader->Int("intermediate_size", 1, kMaxDimension, &config->intermediate_size);
  reader->Int("num_hidden_layers", 1, kMaxLayers, &config->num_layers);
  reader->Int("vocab_size", 1, kMaxVocabulary, &config->vocab_size);
  reader->Int("max_position_embeddings", 1, kMaxPositions, &config->max_position_embeddings);
  reader->Positive("rms_norm_eps", &config->rms_norm_eps);
  reader->Positive("final_logit_softcapping", &config->final_logit_softcap);
}

void RefuseQuantization(Reader* reader) {
  if (const Json* quantization = reader->Find("quantization_config"))
    reader->Refuse("quantization_config", *quantization, "is not supported");
}

void ReadText(Reader* reader, const std::string& file, ModelConfig* config) {
  std::string type = "gemma3_text";
  reader->Text("model_type", &type);
  if (type != "gemma3_text") reader->Refuse("model_type", type, "must be gemma3_text");
  ReadSizes(reader, config);
  ReadAttention(reader, &config->attention);
  ReadLayerTypes(reader, config);
  ReadRopes(reader, file, config);
  reader->Text("hidden_activation", &config->activation);
  if (config->activation != "gelu_pytorch_tanh") {
    reader->Refuse("hidden_activation", config->activation, "is not supported");
  }
  reader->MustBeFalse("attention_bias");
  reader->MustBeFalse("use_bidirectional_attention");
  reader->Bool("tie_word_embeddings", &config->tie_word_embeddings);
  reader->Int("bos_token_id", 0, kMaxVocabulary, &config->bos_token_id);
  reader->Int("pad_token_id", 0, kMaxVocabulary, &config->pad_token_id);
  reader->TokenIds("eos_token_id", &config->eos_token_ids);
  RefuseQuantization(reader);
}

// Reads the options of the class QuantizedCache of transformers; ignores options of other caches.
void ReadCacheConfig(const Json& cache, Reader* reader, GenerationDefaults* to) {
  if (!cache.is_object()) return reader->Refuse("cache_config", cache, "must be an object");
  constexpr std::pair<const char*, const char*> kOptions[] = {{"nbits", "bits"},
                                                              {"q_group_size", "group"},
                                                              {"axis_key", "axis_key"},
                                                              {"axis_value", "axis_value"},
                                                              {"residual_length", "residual"}};
  for (const auto& [theirs, ours] : kOptions) {
    const auto value = cache.find(theirs);
    if (value == cache.end() || value->is_null()) continue;
    const std::string name = absl::StrCat("cache_config.", theirs);
    if (!value->is_number_integer()) return reader->Refuse(name, *value, "must be a number");
    absl::StrAppend(&to->kv_quantization, to->kv_quantization.empty() ? "" : ",", ours, "=",
                    value->dump());
  }
}

// use_cache controls only how transformers computes, and is unrelated to stored prefixes. Training
// guides set it to false, and many checkpoints still contain this value.
void NoteUseCache(const Json& json, const std::string& file, std::vector<std::string>* notes) {
  const Json& text = JsonAt(json, {"text_config"});
  for (const Json* value : {&JsonAt(json, {"use_cache"}), &JsonAt(text, {"use_cache"})}) {
    if (*value != false) continue;
    notes->push_back(absl::StrCat(
        file,
        ": use_cache = false is ignored: it is an option for training with transformers;"
        " this worker still caches prefixes"));
    return;
  }
}

// A field of generation_config.json that changes the output of transformers and that this worker
// does not apply. `neutral`: the value that changes nothing (for a boolean 1 or 0).
struct UnappliedField {
  const char* name;
  double neutral = std::numeric_limits<double>::quiet_NaN();
};
constexpr UnappliedField kUnappliedFields[] = {
    {"do_sample", 1},
    {"repetition_penalty", 1},
    {"min_p", 0},
    {"no_repeat_ngram_size", 0},
    {"typical_p", 1},
    {"encoder_repetition_penalty", 1},
    {"top_h"},
    {"epsilon_cutoff", 0},
    {"num_beams", 1},
    {"eta_cutoff", 0},
    {"num_beam_groups", 1},
    {"penalty_alpha"},
    {"guidance_scale", 1},
    {"dola_layers"},
    {"min_length", 0},
    {"max_new_tokens"},
    {"min_new_tokens", 0},
    {"stop_strings"},
    {"bad_words_ids"},
    {"sequence_bias"},
    {"suppress_tokens"},
    {"begin_suppress_tokens"},
    {"forced_bos_token_id"},
    {"forced_eos_token_id"},
    {"watermarking_config"},
    {"exponential_decay_length_penalty"},
};

bool ChangesNothing(const Json& value, double neutral) {
  if (value.is_boolean()) return value.get<bool>() == (neutral != 0);
  if (value.is_number()) return value.get<double>() == neutral;
  return value.is_null() || (value.is_structured() && value.empty());
}

void NoteUnapplied(const Json& json, const std::string& file, std::vector<std::string>* notes) {
  NoteUseCache(json, file, notes);
  for (const UnappliedField& field : kUnappliedFields) {
    const Json& value = JsonAt(json, {field.name});
    if (ChangesNothing(value, field.neutral)) continue;
    notes->push_back(absl::StrCat(file, ": ", field.name, " = ", JsonExcerpt(value),
                                  " is ignored: give this option in each request"));
  }
}

// --- GGUF ---

// The end-of-turn token of Gemma 3's vocabulary; GGUF files of Gemma 3 declare only <eos> as end.
constexpr int64_t kGemmaVocabulary = 262144;
constexpr int32_t kGemmaEndOfTurn = 106;
// Gemma 3 1B and 27B have special constants (in ConfigOf); the number of layers identifies them.
constexpr int kLayersOf1B = 26, kLayersOf27B = 62;
constexpr int kLongContext = 131072;

// Collects numeric fields of a GGUF header under the field names of config.json.
class GgufFields {
 public:
  explicit GgufFields(const GgufHeader& header) : header_(header) {}

  // Stores the first existing field of `theirs` under the name `ours`. If no field exists, stores
  // `otherwise`, unless it is null.
  void Take(const char* ours, std::initializer_list<const char*> theirs, Json otherwise = {}) {
    for (const char* name : theirs) {
      const GgufValue& value = header_.Field(name);
      if (std::holds_alternative<std::monostate>(value)) continue;
      if (const auto* real = std::get_if<double>(&value)) {
        if (!(std::abs(*real) <= std::numeric_limits<float>::max())) return Refuse(name);
        // Restores the decimal number that was rounded to this float32.
        const std::string shortest = absl::StrCat(static_cast<float>(*real));
        otherwise = std::strtod(shortest.c_str(), nullptr);
      } else if (const auto* natural = std::get_if<uint64_t>(&value)) {
        otherwise = *natural;
      } else if (const auto* integer = std::get_if<int64_t>(&value)) {
        otherwise = *integer;
      } else {
        return Refuse(name);
      }
      break;
    }
    if (!otherwise.is_null()) json[ours] = std::move(otherwise);
  }
  void Refuse(const char* name) {
    status.Update(absl::InvalidArgumentError(absl::StrCat(
        header_.file->path, ": field ", name, " is missing or has an unsupported value")));
  }
  int Int(const char* name) const {
    const auto found = json.find(name);
    return found != json.end() && found->is_number_integer() ? found->get<int>() : 0;
  }

  Json json = Json::object();
  absl::Status status;

 private:
  const GgufHeader& header_;
};

void TakeRopes(const GgufHeader& header, GgufFields* fields) {
  fields->Take("rope_theta", {"rope.freq_base", "rope.global.freq_base"});
  fields->Take("rope_local_base_freq", {"rope.freq_base_swa", "rope.local.freq_base"});
  constexpr char kType[] = "rope.scaling.type";
  const bool is_none = header.FieldIs(kType, "none");
  const bool is_open = std::holds_alternative<std::monostate>(header.Field(kType));
  if (!is_open && !is_none && !header.FieldIs(kType, "linear")) fields->Refuse(kType);
  // Ollama's files omit the RoPE scaling factor; all model sizes with the long context need it.
  const bool is_long = fields->Int("max_position_embeddings") >= kLongContext && is_open;
  fields->Take("factor", {"rope.scaling.factor"}, is_long ? 8.0 : 1.0);
  if (!is_none && fields->json["factor"] != 1.0)
    fields->json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", fields->json["factor"]}};
}

// Returns a GGUF header's fields in the form of config.json. Missing fields get the defaults of the
// Gemma 3 architecture.
absl::StatusOr<Json> ConfigOf(const GgufHeader& header) {
  GgufFields fields(header);
  fields.Take("hidden_size", {"embedding_length"});
  fields.Take("intermediate_size", {"feed_forward_length"});
  fields.Take("num_hidden_layers", {"block_count"});
  fields.Take("num_attention_heads", {"attention.head_count"});
  fields.Take("num_key_value_heads", {"attention.head_count_kv"});
  fields.Take("head_dim", {"attention.key_length"}, 256);
  fields.Take("values", {"attention.value_length"}, fields.json["head_dim"]);
  if (fields.json["values"] != fields.json["head_dim"]) fields.Refuse("attention.value_length");
  fields.Take("max_position_embeddings", {"context_length"});
  fields.Take("rms_norm_eps", {"attention.layer_norm_rms_epsilon"});
  fields.Take("sliding_window", {"attention.sliding_window"});
  fields.Take("attn_logit_softcapping", {"attn_logit_softcapping"});
  fields.Take("final_logit_softcapping", {"final_logit_softcapping"});
  fields.Take("bos_token_id", {"bos_token_id"});
  fields.Take("pad_token_id", {"padding_token_id"});
  constexpr char kPattern[] = "attention.sliding_window_pattern";
  if (const auto* pattern = std::get_if<std::vector<bool>>(&header.Field(kPattern))) {
    for (const bool is_local : *pattern)
      fields.json["layer_types"].push_back(is_local ? "sliding_attention" : "full_attention");
  } else {
    fields.Take("sliding_window_pattern", {kPattern});
  }
  TakeRopes(header, &fields);
  const int layers = fields.Int("num_hidden_layers"), heads = fields.Int("num_attention_heads");
  if (layers == kLayersOf1B)
    fields.json["sliding_window"] = 512;  // Google's file wrongly has 1,024
  fields.json["query_pre_attn_scalar"] = layers == kLayersOf27B && heads > 0
                                             ? Json(fields.Int("hidden_size") / heads)
                                             : fields.json["head_dim"];
  for (const char* needed : {"hidden_size", "intermediate_size", "num_hidden_layers",
                             "num_attention_heads", "num_key_value_heads", "sliding_window"}) {
    if (!fields.json.contains(needed)) fields.Refuse(needed);
  }
  fields.Take("eos_token_id", {"eos_token_id"});
  fields.Take("end_of_turn", {"eot_token_id"});
  Json ends = Json::array();
  for (const char* name : {"eos_token_id", "end_of_turn"}) {
    if (fields.json.contains(name)) ends.push_back(fields.json[name]);
  }
  for (const TensorView& view : header.tensors) {
    if (view.name != "model.embed_tokens.weight" || view.shape.size() != 2) continue;
    fields.json["vocab_size"] = view.shape[0];
    if (view.shape[0] >= kGemmaVocabulary) ends.push_back(kGemmaEndOfTurn);
  }
  if (!ends.empty()) fields.json["eos_token_id"] = std::move(ends);
  if (!fields.status.ok()) return fields.status;
  return std::move(fields.json);
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view json, const std::string& file,
                                             std::optional<absl::string_view> generation_json,
                                             const std::string& generation_file) {
  absl::StatusOr<Json> root = ParseObject(json, file);
  if (!root.ok()) return root.status();
  ModelConfig config;
  NoteUseCache(*root, file, &config.notes);
  Reader top(*root, file);
  top.TokenIds("eos_token_id", &config.eos_token_ids);
  if (const Json* weights = top.Find("transformers_weights"))
    top.Refuse("transformers_weights", *weights, "is not supported: rename to model.safetensors");
  if (const Json* text = top.Find("text_config")) {
    if (!text->is_object()) top.Refuse("text_config", *text, "must be an object");
    std::string type = "gemma3";
    top.Text("model_type", &type);
    if (type != "gemma3") top.Refuse("model_type", type, "must be gemma3");
    if (!top.status().ok()) return top.status();
    config.nested = true;
    RefuseQuantization(&top);
    Reader reader(*text, file);
    ReadText(&reader, file, &config);
    if (!reader.status().ok()) return reader.status();
    // As in transformers 5, the field in text_config is ignored; the default of the outer field is
    // true.
    config.tie_word_embeddings = true;
    top.Bool("tie_word_embeddings", &config.tie_word_embeddings);
  } else {
    config.eos_token_ids.clear();
    ReadText(&top, file, &config);
  }
  if (!top.status().ok()) return top.status();
  if (generation_json.has_value()) {
    absl::StatusOr<Json> generation = ParseObject(*generation_json, generation_file);
    if (!generation.ok()) return generation.status();
    Reader reader(*generation, generation_file);
    // The ids of generation_config.json replace the ids of config.json, as in transformers.
    if (reader.Find("eos_token_id") != nullptr) config.eos_token_ids.clear();
    reader.TokenIds("eos_token_id", &config.eos_token_ids);
    reader.Text("cache_implementation", &config.generation.cache_implementation);
    reader.Within("temperature", 0, 100, &config.generation.temperature);
    reader.Int("top_k", 0, std::numeric_limits<int>::max(), &config.generation.top_k);
    reader.Within("top_p", 0, 1, &config.generation.top_p);
    if (const Json* cache = reader.Find("cache_config")) {
      ReadCacheConfig(*cache, &reader, &config.generation);
    }
    if (!reader.status().ok()) return reader.status();
    NoteUnapplied(*generation, generation_file, &config.notes);
  }
  std::vector<int32_t>& eos = config.eos_token_ids;
  const auto outside = std::stable_partition(
      eos.begin(), eos.end(), [&config](int32_t id) { return id < config.vocab_size; });
  if (outside != eos.end()) {
    config.notes.push_back(absl::StrCat(generation_json.has_value() ? generation_file : file,
                                        ": eos_token_id: ignores ", *outside,
                                        ": the vocabulary has ", config.vocab_size, " tokens"));
    eos.erase(outside, eos.end());
  }
  if (eos.empty()) eos.push_back(1);
  std::sort(eos.begin(), eos.end());
  eos.erase(std::unique(eos.begin(), eos.end()), eos.end());
  return config;
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model_dir) {
  if (IsGgufFile(model_dir)) {
    const absl::StatusOr<GgufHeader> header = ReadGgufHeader(model_dir, /*with_vocabulary=*/false);
    if (!header.ok()) return header.status();
    const absl::StatusOr<Json> json = ConfigOf(*header);
    return json.ok() ? ParseModelConfig(json->dump(), model_dir) : json.status();
  }
  const std::string file = absl::StrCat(model_dir, "/config.json");
  std::error_code ignored;
  if (!std::filesystem::is_directory(model_dir, ignored)) {
    return absl::NotFoundError(absl::StrCat(
        model_dir,
        " is neither a folder nor a GGUF file; for a Hugging Face model, give the folder that ",
        "it was downloaded to"));
  }
  absl::StatusOr<std::string> json = ReadModelFile(file, kMaxJsonFileBytes);
  if (!json.ok()) return json.status();
  if (const std::string adapter = absl::StrCat(model_dir, "/adapter_config.json");
      std::filesystem::exists(adapter, ignored)) {
    return absl::InvalidArgumentError(absl::StrCat(
        adapter,
        ": transformers would apply this adapter to the model in the same folder; move its "
        "files to another folder and give --adapter NAME=FOLDER, or remove them"));
  }
  const std::string generation_file = absl::StrCat(model_dir, "/generation_config.json");
  if (!std::filesystem::exists(generation_file, ignored)) return ParseModelConfig(*json, file);
  absl::StatusOr<std::string> generation = ReadModelFile(generation_file, kMaxJsonFileBytes);
  if (!generation.ok()) return generation.status();
  return ParseModelConfig(*json, file, *generation, generation_file);
}

absl::Status CheckTokenIds(absl::Span<const int32_t> tokens, const ModelConfig& config) {
  for (const int32_t token : tokens) {
    if (token < 0 || token >= config.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", token, " is not in [0, ", config.vocab_size, ")"));
    }
  }
  return absl::OkStatus();
}

KvLayout LayoutOf(const ModelConfig& config, KvDtype dtype, uint32_t chunk_tokens,
                  Exactness exactness) {
  KvLayout layout;
  layout.chunk_tokens = chunk_tokens;
  layout.window = static_cast<uint32_t>(config.attention.sliding_window);
  layout.kv_heads = static_cast<uint32_t>(config.attention.num_kv_heads);
  layout.head_dim = static_cast<uint32_t>(config.attention.head_dim);
  layout.dtype = dtype;
  layout.exactness = exactness;
  layout.layers = config.layer_types;
  return layout;
}

}  // namespace hearth
