#include "tests/support/tiny_checkpoint.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/gemma_config.h"

namespace hearth {
namespace {

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  float scale;
};

// Large enough that random logits differ by whole units, small enough to avoid saturation.
constexpr float kMatrixScale = 0.3F;
constexpr float kNormScale = 0.2F;

std::vector<Tensor> Tensors(const TinyGeometry& g) {
  const int q = g.heads * g.head_dim, kv = g.kv_heads * g.head_dim;
  std::vector<Tensor> tensors = {
      {"model.embed_tokens.weight", {g.vocab_size, g.hidden_size}, kMatrixScale},
      {"model.norm.weight", {g.hidden_size}, kNormScale}};
  for (size_t layer = 0; layer < g.layer_types.size(); ++layer) {
    const std::string at = absl::StrCat("model.layers.", layer, ".");
    for (const char* norm : {"input_layernorm", "post_attention_layernorm",
                             "pre_feedforward_layernorm", "post_feedforward_layernorm"}) {
      tensors.push_back({absl::StrCat(at, norm, ".weight"), {g.hidden_size}, kNormScale});
    }
    const std::string attention = at + "self_attn.";
    tensors.push_back({attention + "q_proj.weight", {q, g.hidden_size}, kMatrixScale});
    tensors.push_back({attention + "k_proj.weight", {kv, g.hidden_size}, kMatrixScale});
    tensors.push_back({attention + "v_proj.weight", {kv, g.hidden_size}, kMatrixScale});
    tensors.push_back({attention + "o_proj.weight", {g.hidden_size, q}, kMatrixScale});
    tensors.push_back({attention + "q_norm.weight", {g.head_dim}, kNormScale});
    tensors.push_back({attention + "k_norm.weight", {g.head_dim}, kNormScale});
    const std::string mlp = at + "mlp.";
    tensors.push_back(
        {mlp + "gate_proj.weight", {g.intermediate_size, g.hidden_size}, kMatrixScale});
    tensors.push_back({mlp + "up_proj.weight", {g.intermediate_size, g.hidden_size}, kMatrixScale});
    tensors.push_back(
        {mlp + "down_proj.weight", {g.hidden_size, g.intermediate_size}, kMatrixScale});
  }
  return tensors;
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file.good()) {
    std::fprintf(stderr, "%s: cannot write\n", path.c_str());
    std::abort();
  }
}

// Removes this program's folders when it ends.
class Folders {
 public:
  ~Folders() {
    std::error_code ignored;
    for (const std::string& folder : folders_) std::filesystem::remove_all(folder, ignored);
  }
  void Add(const std::string& folder) {
    const std::lock_guard<std::mutex> lock(mutex_);
    folders_.push_back(folder);
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> folders_;
};

}  // namespace

void WriteTinyCheckpoint(const TinyGeometry& geometry, const std::string& dir) {
  std::mt19937_64 random(geometry.seed);
  std::string header = "{", data;
  for (const Tensor& tensor : Tensors(geometry)) {
    size_t count = 1;
    for (int64_t n : tensor.shape) count *= static_cast<size_t>(n);
    const size_t begin = data.size();
    const size_t bytes = geometry.bfloat16 ? 2 : 4;
    data.resize(begin + count * bytes);
    for (size_t i = 0; i < count; ++i) {
      // Computes uniform values itself: the standard's distributions differ between libraries.
      const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
      const float value = static_cast<float>((2 * unit - 1) * tensor.scale);
      const char* const end = reinterpret_cast<const char*>(&value) + sizeof(float);
      std::memcpy(&data[begin + i * bytes], end - bytes, bytes);
    }
    absl::StrAppend(&header, header.size() > 1 ? "," : "", "\"", tensor.name, "\":{\"dtype\":\"",
                    geometry.bfloat16 ? "BF16" : "F32", "\",\"shape\":[",
                    absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[", begin, ",",
                    data.size(), "]}");
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  const uint64_t header_bytes = header.size();
  std::memcpy(length.data(), &header_bytes, sizeof(header_bytes));
  WriteFile(dir + "/config.json", GemmaConfig(geometry, "float32", 0, 0));
  WriteFile(dir + "/model.safetensors", length + header + data);
}

std::string NewTinyCheckpoint(const TinyGeometry& geometry, const std::string& name) {
  std::string pattern =
      (std::filesystem::temp_directory_path() / ("hearth_" + name + "_XXXXXX")).string();
  const char* dir = mkdtemp(pattern.data());
  if (dir == nullptr) {
    std::perror(pattern.c_str());
    std::abort();
  }
  static Folders folders;
  folders.Add(dir);
  WriteTinyCheckpoint(geometry, dir);
  return dir;
}

}  // namespace hearth
