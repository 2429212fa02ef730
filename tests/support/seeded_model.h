// Seeded models: bfloat16 weights computed from the tensor, the output and the input. So a device
// and the CPU can create the same model without copying a file.
//
// Thread safety: pure functions.
#ifndef HEARTH_TESTS_SUPPORT_SEEDED_MODEL_H_
#define HEARTH_TESTS_SUPPORT_SEEDED_MODEL_H_

#include <cstdint>
#include <string>

#include "worker/kernels/functions.h"

namespace hearth {

struct SeededGeometry {
  std::string name;
  std::string layer_types;  // one letter per layer: l for local, g for global
  int window = 512;
  int heads = 4, kv_heads = 1, head_dim = 256;
  int hidden = 640, intermediate = 2048, vocabulary = 262144;
  int positions = 32768;
  double attention_softcap = 0, logit_softcap = 0;  // 0: the model has no softcap
};

// Returns the layer types of a model with `layers` layers, of which every sixth is global, as in
// Gemma 3.
inline std::string LayerTypes(int layers) {
  std::string types;
  for (int i = 0; i < layers; ++i) types += i % 6 == 5 ? 'g' : 'l';
  return types;
}

// Return the published geometries of Gemma 3 models. `layers`: number of layers; 0: all layers.
inline SeededGeometry Gemma270M(int layers = 0) {
  return {"270M", LayerTypes(layers > 0 ? layers : 18), 512, 4, 1, 256, 640, 2048};
}
inline SeededGeometry Gemma1B(int layers = 0) {
  return {"1B", LayerTypes(layers > 0 ? layers : 26), 512, 4, 1, 256, 1152, 6912};
}
inline SeededGeometry Gemma4B(int layers = 0) {
  return {"4B", LayerTypes(layers > 0 ? layers : 34), 1024, 8, 4, 256, 2560, 10240};
}
inline SeededGeometry Gemma12B(int layers = 0) {
  return {"12B", LayerTypes(layers > 0 ? layers : 48), 1024, 16, 8, 256, 3840, 15360};
}
inline SeededGeometry Gemma27B(int layers = 0) {
  return {"27B", LayerTypes(layers > 0 ? layers : 62), 1024, 32, 16, 128, 5376, 21504};
}

// The tensors of a layer.
enum class SeededTensor : uint32_t {
  kQ,
  kK,
  kV,
  kOut,
  kGate,
  kUp,
  kDown,
  kInputNorm,
  kPostAttentionNorm,
  kPreFeedforwardNorm,
  kPostFeedforwardNorm,
  kQNorm,
  kKNorm,
  kEmbedding,
  kFinalNorm  // belongs to the whole model; stored with layer 0
};

// Returns the values of a tensor, uniform in [-scale, scale). The scale is about sqrt(3 / inputs),
// so that matrix products are about as large as their input rows.
struct SeededMatrix {
  uint32_t seed = 0;
  float scale = 0;

  HEARTH_HOST_DEVICE uint16_t Weight(int output, int input) const {
    uint32_t h = seed + static_cast<uint32_t>(output) * 0x9e3779b1u;
    h = (h ^ h >> 16) * 0x85ebca6bu + static_cast<uint32_t>(input) * 0xc2b2ae35u;
    h = (h ^ h >> 13) * 0x27d4eb2fu;
    h = (h ^ h >> 16) * 0x165667b1u;
    h ^= h >> 15;
    const float unit = exact::Sub(exact::Mul(static_cast<float>(h >> 8), 0x1p-23f), 1.0f);
    return static_cast<uint16_t>(exact::BitsOf(exact::Mul(unit, scale)) >> 16);
  }
};

inline SeededMatrix SeededOf(int layer, SeededTensor tensor, int inputs) {
  const uint32_t number = static_cast<uint32_t>(layer) * 16 + static_cast<uint32_t>(tensor) + 1;
  float scale = 0.2f;  // the scale for norms
  if (inputs > 0) {
    scale = 1.75f;
    // halves the scale until it is a power of 2 near 1 / sqrt(inputs)
    for (int i = 1; i * 4 <= inputs; i *= 4) scale /= 2;
  }
  return {number * 0x7feb352du, scale};
}

// Writes the model's config.json and model.safetensors to the folder `dir`, which must exist.
// Aborts the process if writing fails.
void WriteSeededModel(const SeededGeometry& geometry, const std::string& dir);

// Returns a token id of a made-up text: the same for the same text number and position.
inline int32_t SeededToken(int text, int position, int vocabulary) {
  const SeededMatrix words = {0x51ed270bu, 1};
  const uint32_t high = words.Weight(text, 2 * position),
                 low = words.Weight(text, 2 * position + 1);
  return static_cast<int32_t>((high * 65537u ^ low * 40503u) % static_cast<uint32_t>(vocabulary));
}

// Returns a 64-bit digest of the bytes, for lists of expected results.
inline uint64_t DigestOfBytes(const void* bytes, size_t count) {
  const auto* at = static_cast<const unsigned char*>(bytes);
  uint64_t digest = 0xcbf29ce484222325u;
  for (size_t i = 0; i + 4 <= count; i += 4) {
    uint32_t word;
    std::memcpy(&word, at + i, 4);
    digest = (digest ^ word) * 0x9e3779b97f4a7c15u;
    digest ^= digest >> 29;
  }
  return digest;
}

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_SEEDED_MODEL_H_
