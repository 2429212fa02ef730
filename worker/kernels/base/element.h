// Element types of weights: float32; 16-bit floats that a kernel widens exactly in registers; and
// the quantized block types of ggml, as a GGUF file stores them (weight_blocks.h).
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

// Storage form of an element type: blocks of `values` values in `bytes` bytes.
struct ElementForm {
  const char* name;  // the type's name in GGUF and safetensors files
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
// REQUIRES: `type` is not a block type.
constexpr size_t ElementBytes(ElementType type) { return FormOf(type).bytes; }
// Returns the bytes of a row of `values` values; an incomplete last block counts as a whole block.
constexpr size_t RowBytes(ElementType type, int64_t values) {
  const ElementForm form = FormOf(type);
  return static_cast<size_t>((values + form.values - 1) / form.values) * form.bytes;
}

inline float FloatOfBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Returns the nearest bfloat16, ties to even; a NaN gives a NaN.
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
  // Multiplying by 2^112 corrects the exponent's bias, for subnormal numbers too.
  const float magnitude = FloatOfBits(rest << 13) * FloatOfBits((112u + 127u) << 23);
  return sign != 0 ? -magnitude : magnitude;
}

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_BASE_ELEMENT_H_
