// The texts for which a device and the CPU compute seeded models, and the results that are
// compared.
//
// Thread safety: pure functions.
#ifndef HEARTH_BENCH_GPU_SEEDED_CASES_H_
#define HEARTH_BENCH_GPU_SEEDED_CASES_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/seeded_model.h"

namespace hearth {

inline constexpr int kSeededSplit = 128;

// Texts of a seeded model. Text 0 is longer than the attention window; the other texts are short
// and have different lengths.
struct SeededCase {
  SeededGeometry geometry;
  std::vector<int> lengths;
};

// `bf16`: the cases for arithmetic bf16 have few layers and short texts, because a CPU is slow
// there.
inline std::vector<SeededCase> SeededCases(bool bf16 = false) {
  const SeededGeometry tiny = {"tiny", "lgl", 130, 4, 2, 64, 128, 256, 512, 8192 + 128};
  std::vector<SeededCase> cases = {
      {tiny, {300}}, {Gemma270M(), {700}}, {Gemma1B(6), {700}}, {Gemma4B(6), {1100}}};
  for (SeededCase& one : cases) {
    // Larger models get a small vocabulary, because computing their logits would take most of the
    // CPU's time.
    if (one.geometry.vocabulary > 32768 && one.geometry.name != "270M") {
      one.geometry.vocabulary = 32768;
    }
    if (bf16) one.geometry.layer_types = "lg";
    const int longest = bf16 ? 40 : 150;
    for (int text = 1; text < 32; ++text) one.lengths.push_back(2 + text * 37 % longest);
  }
  return cases;
}

// Returns the name of a model's digests.
inline std::string DigestsName(const SeededGeometry& geometry, bool bf16) {
  return geometry.name + (bf16 ? "-bf16" : "");
}
// Text number of the line whose digest is the element type of keys and values.
inline constexpr int kKvDtypeText = -1;

inline std::vector<int32_t> SeededTokens(int text, int count, int vocabulary) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(SeededToken(text, i, vocabulary));
  return tokens;
}

inline std::vector<int32_t> SeededText(const SeededCase& one, int text) {
  return SeededTokens(text, one.lengths[static_cast<size_t>(text)], one.geometry.vocabulary);
}

// Returns for how many tokens at the end of a text the logits are compared.
inline int WantedOf(int text) { return text == 0 ? 8 : 2; }

// Returns the layers whose keys and values are compared for text 0: the last local layer and the
// last global layer.
inline std::vector<int> KvLayers(const SeededGeometry& geometry) {
  return {static_cast<int>(geometry.layer_types.rfind('l')),
          static_cast<int>(geometry.layer_types.rfind('g'))};
}

// Computes a digest of the keys and values of one layer. Add the slices of the layer in ascending
// order of KV blocks.
class SeededKvDigest {
 public:
  // `value_bytes`: bytes of an element of keys and values.
  SeededKvDigest(const SeededGeometry& geometry, size_t value_bytes)
      : geometry_(geometry), value_bytes_(value_bytes) {}

  // Adds one slice. Ignores a null `slice`, and rows of tokens from `length` on.
  void Add(const std::byte* slice, int split, int length) {
    const int rows =
        length - split * kSeededSplit < kSeededSplit ? length - split * kSeededSplit : kSeededSplit;
    if (slice == nullptr || rows <= 0) return;
    const size_t row_bytes = value_bytes_ * static_cast<size_t>(geometry_.head_dim);
    for (int run = 0; run < 2 * geometry_.kv_heads; ++run) {
      const std::byte* from = slice + static_cast<size_t>(run * kSeededSplit) * row_bytes;
      const uint64_t digest = DigestOfBytes(from, static_cast<size_t>(rows) * row_bytes);
      value_ = (value_ ^ digest) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(split);
    }
  }
  uint64_t value() const { return value_; }

 private:
  const SeededGeometry geometry_;
  const size_t value_bytes_;
  uint64_t value_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_BENCH_GPU_SEEDED_CASES_H_
