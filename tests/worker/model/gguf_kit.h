// Builds GGUF files for tests.
#ifndef HEARTH_TESTS_WORKER_MODEL_GGUF_KIT_H_
#define HEARTH_TESTS_WORKER_MODEL_GGUF_KIT_H_

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/model/weights_kit.h"
#include "worker/kernels/quantized/weight_blocks.h"

namespace hearth {

constexpr uint32_t kU32 = 4, kF32 = 6, kText = 8, kList = 9;

template <typename T>
inline std::string Number(T value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}
inline std::string Text(const std::string& text) { return Number<uint64_t>(text.size()) + text; }
inline std::string U32(uint32_t value) { return Number(kU32) + Number(value); }
inline std::string F32(float value) { return Number(kF32) + Number(value); }
inline std::string TextValue(const std::string& text) { return Number(kText) + Text(text); }

// A GGUF file that tests can change. The default file has no layers; WholeGguf returns a complete
// model.
struct GgufBytes {
  uint32_t version = 3;
  std::vector<std::pair<std::string, std::string>> fields = {
      {"general.architecture", TextValue("gemma3")}, {"gemma3.embedding_length", U32(32)},
      {"gemma3.feed_forward_length", U32(64)},       {"gemma3.block_count", U32(1)},
      {"gemma3.attention.head_count", U32(2)},       {"gemma3.attention.head_count_kv", U32(1)},
      {"gemma3.attention.key_length", U32(16)},      {"gemma3.attention.sliding_window", U32(1024)},
      {"gemma3.context_length", U32(512)},
  };
  struct Tensor {
    std::string name;
    std::vector<uint64_t> sizes;  // the fastest dimension first
    uint32_t type = 0;
    uint64_t offset = 0;
  };
  std::vector<Tensor> tensors = {{"token_embd.weight", {32, 40}, 8, 0},
                                 {"output_norm.weight", {32}, 0, 1376}};
  size_t data_bytes = 1376 + 128;
  std::string data;

  std::string Header() const {
    std::string bytes = "GGUF" + Number(version) + Number<uint64_t>(tensors.size()) +
                        Number<uint64_t>(fields.size());
    for (const auto& [name, value] : fields) bytes += Text(name) + value;
    for (const Tensor& tensor : tensors) {
      bytes += Text(tensor.name) + Number(static_cast<uint32_t>(tensor.sizes.size()));
      for (const uint64_t size : tensor.sizes) bytes += Number(size);
      bytes += Number(tensor.type) + Number(tensor.offset);
    }
    return bytes + std::string((32 - bytes.size() % 32) % 32, '\0');
  }
  // The data is `data`; if `data` is empty, it is data_bytes bytes of value 1.
  std::string Bytes() const {
    return Header() + (data.empty() ? std::string(data_bytes, '\1') : data);
  }
  GgufBytes& Set(const std::string& name, const std::string& value) {
    for (auto& field : fields) {
      if (field.first != name) continue;
      field.second = value;
      return *this;
    }
    fields.emplace_back(name, value);
    return *this;
  }
};

// Sets the vocabulary of WholeGguf: special tokens, all bytes, four letters and one merge of two
// letters.
inline void SetVocabulary(GgufBytes* file) {
  std::vector<std::string> tokens = {"<pad>", "<eos>", "<bos>", "<unk>"};
  std::vector<int32_t> types = {3, 3, 3, 2};
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    tokens.emplace_back(text);
    types.push_back(6);
  }
  for (const char* text : {"a", "b", "c", "d", "ab"}) {
    tokens.emplace_back(text);
    types.push_back(1);
  }
  std::string list, kinds, scores;
  for (size_t i = 0; i < tokens.size(); ++i) {
    list += Text(tokens[i]);
    kinds += Number(types[i]);
    scores += Number(-static_cast<float>(i));
  }
  const auto list_of = [&](uint32_t type, const std::string& values) {
    return Number(kList) + Number(type) + Number<uint64_t>(tokens.size()) + values;
  };
  file->Set("tokenizer.ggml.model", TextValue("llama"))
      .Set("tokenizer.ggml.tokens", list_of(kText, list))
      .Set("tokenizer.ggml.scores", list_of(kF32, scores))
      .Set("tokenizer.ggml.token_type", list_of(5, kinds));
}

// Returns a complete model of one layer with random weights. The matrix `name` has the type
// type_of(name); if `is_widened`, it has the same values in float32.
inline GgufBytes WholeGguf(const std::function<ElementType(const std::string&)>& type_of,
                           bool is_widened = false) {
  constexpr uint64_t kHidden = 256, kInner = 256, kQueries = 256, kKeys = 64, kPieces = 265;
  GgufBytes file;
  file.Set("gemma3.embedding_length", U32(kHidden)).Set("gemma3.feed_forward_length", U32(kInner));
  file.Set("gemma3.attention.head_count", U32(4)).Set("gemma3.attention.key_length", U32(64));
  SetVocabulary(&file);
  file.tensors.clear();
  Numbers numbers(7);
  const auto add = [&](const std::string& name, std::vector<uint64_t> sizes) {
    const uint64_t inputs = sizes[0], outputs = sizes.size() > 1 ? sizes[1] : 1;
    const ProductShape shape{static_cast<int64_t>(outputs), static_cast<int64_t>(inputs)};
    ElementType type = sizes.size() > 1 ? type_of(name) : ElementType::kFloat32;
    std::vector<std::byte> stored = StoredWeights(shape, type, &numbers);
    if (is_widened) {
      std::vector<float> wide(outputs * inputs);
      WidenRow(type, stored.data(), static_cast<int64_t>(wide.size()), wide.data());
      stored.resize(wide.size() * sizeof(float));
      std::memcpy(stored.data(), wide.data(), stored.size());
      type = ElementType::kFloat32;
    }
    const std::vector<std::pair<ElementType, uint32_t>> numbers_of = {
        {ElementType::kFloat32, 0}, {ElementType::kFloat16, 1},  {ElementType::kQ4_0, 2},
        {ElementType::kQ4_1, 3},    {ElementType::kQ5_0, 6},     {ElementType::kQ5_1, 7},
        {ElementType::kQ8_0, 8},    {ElementType::kQ4_K, 12},    {ElementType::kQ5_K, 13},
        {ElementType::kQ6_K, 14},   {ElementType::kBFloat16, 30}};
    for (const auto& [known, number] : numbers_of) {
      if (known == type) file.tensors.push_back({name, sizes, number, file.data.size()});
    }
    file.data.append(reinterpret_cast<const char*>(stored.data()), stored.size());
    file.data.resize((file.data.size() + 31) / 32 * 32);
  };
  add("token_embd.weight", {kHidden, kPieces});
  add("output_norm.weight", {kHidden});
  const std::string layer = "blk.0.";
  for (const char* norm : {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"})
    add(layer + norm + ".weight", {kHidden});
  add(layer + "attn_q_norm.weight", {64});
  add(layer + "attn_k_norm.weight", {64});
  add(layer + "attn_q.weight", {kHidden, kQueries});
  add(layer + "attn_k.weight", {kHidden, kKeys});
  add(layer + "attn_v.weight", {kHidden, kKeys});
  add(layer + "attn_output.weight", {kQueries, kHidden});
  add(layer + "ffn_gate.weight", {kHidden, kInner});
  add(layer + "ffn_up.weight", {kHidden, kInner});
  add(layer + "ffn_down.weight", {kInner, kHidden});
  return file;
}

}  // namespace hearth

#endif  // HEARTH_TESTS_WORKER_MODEL_GGUF_KIT_H_
