// Elements of weights: float32, or 16 or 8 bits that a kernel widens in registers. Widening is
// exact; what an int8 is worth is its group's to say (packed_weights.h).
#ifndef HEARTH_WORKER_KERNELS_BASE_ELEMENT_H_
#define HEARTH_WORKER_KERNELS_BASE_ELEMENT_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hearth {

enum class ElementType { kFloat32, kBFloat16, kFloat16, kInt8 };

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};
struct Int8 {
  int8_t value;
};

constexpr size_t ElementBytes(ElementType type) {
  return type == ElementType::kFloat32 ? 4 : type == ElementType::kInt8 ? 1 : 2;
}

inline float FloatOfBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float WidenOne(float value) { return value; }
inline float WidenOne(Int8 value) { return static_cast<float>(value.value); }
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
