// Elements of weights: float32, or 16 bits that a kernel widens in registers, which is exact. The
// types behind them are those of ggml's blocks, as a GGUF file has them (weight_blocks.h).
#ifndef HEARTH_WORKER_KERNELS_BASE_ELEMENT_H_
#define HEARTH_WORKER_KERNELS_BASE_ELEMENT_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hearth {

enum class ElementType {
  kFloat32,
  kBFloat16,
  kFloat16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K
};

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

// How a type's values lie in a file: so many of a row in so many bytes.
struct ElementForm {
  const char* name;  // as files say it
  int64_t values;
  size_t bytes;
};
constexpr ElementForm FormOf(ElementType type) {
  constexpr ElementForm kForms[] = {{"F32", 1, 4},      {"BF16", 1, 2},    {"F16", 1, 2},
                                    {"Q8_0", 32, 34},   {"Q4_0", 32, 18},  {"Q4_1", 32, 20},
                                    {"Q5_0", 32, 22},   {"Q5_1", 32, 24},  {"Q4_K", 256, 144},
                                    {"Q5_K", 256, 176}, {"Q6_K", 256, 210}};
  return kForms[static_cast<int>(type)];
}
constexpr bool IsOfBlocks(ElementType type) { return FormOf(type).values > 1; }
// REQUIRES: not of blocks.
constexpr size_t ElementBytes(ElementType type) { return FormOf(type).bytes; }
// With a last block that is not full, where they are no whole number of blocks.
constexpr size_t RowBytes(ElementType type, int64_t values) {
  const ElementForm form = FormOf(type);
  return static_cast<size_t>((values + form.values - 1) / form.values) * form.bytes;
}

inline float FloatOfBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The nearest bfloat16, of two as near the even one; a NaN stays one.
inline BFloat16 NarrowOne(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  bits = is_nan ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1);
  return {static_cast<uint16_t>(bits >> 16)};
}

inline float WidenOne(float value) { return value; }
inline float WidenOne(BFloat16 value) { return FloatOfBits(uint32_t{value.bits} << 16); }
inline float WidenOne(Float16 value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16, rest = value.bits & 0x7fffu;
  if (rest >= 0x7c00) return FloatOfBits(sign | 0x7f800000u | (rest & 0x3ff) << 13);
  // The exponent's bias, 112 larger, by a multiplication: right for subnormal numbers too.
  const float magnitude = FloatOfBits(rest << 13) * FloatOfBits((112u + 127u) << 23);
  return sign != 0 ? -magnitude : magnitude;
}

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_BASE_ELEMENT_H_
