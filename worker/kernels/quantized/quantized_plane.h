// QuantizePlane, DequantizePlane: quantize and dequantize a plane, which is the keys or the values
// of one KV head in one KV block. proto/kv_quantization.h describes the layout of the bytes.
//
// The order of operations, for a group of values:
//   least = the least value, rounded down to bfloat16
//   step = (the largest - least) / (2^bits - 1), rounded up to bfloat16
//   number of a value = (value - least) / step + 0.5, rounded down; 0 if step is 0
//   dequantized value = number * step + least
// The product number * step is exact in float32, so an FMA gives the same bits. If any value of a
// group is not finite, the whole group becomes NaN. REQUIRES: the mode that float_mode.h sets.
//
// Thread safety: pure functions.
#ifndef HEARTH_WORKER_KERNELS_QUANTIZED_QUANTIZED_PLANE_H_
#define HEARTH_WORKER_KERNELS_QUANTIZED_QUANTIZED_PLANE_H_

#include <cstddef>
#include <cstdint>

#include "proto/kv_quantization.h"

namespace hearth {

struct QuantizedPlane {
  KvQuantization form;
  int axis = 0;  // 0 or -1: the value of form.axis_key or form.axis_value
  int64_t tokens = 0, head_dim = 0;

  // Bytes of a row of codes. Columns c, c + width(), c + 2 * width(), ... share a byte.
  int64_t width() const { return head_dim * form.bits / 8; }
  size_t bytes() const {
    return form.PlaneBytes(static_cast<uint32_t>(tokens), static_cast<uint32_t>(head_dim));
  }
  // Returns the index of the group that contains the value at [token][column].
  int64_t GroupOf(int64_t token, int64_t column) const {
    const int64_t group = form.group;
    return axis == 0 ? (token * head_dim + column) / group : token / group * head_dim + column;
  }
};

// Quantizes a plane. `from`: [tokens][head_dim]. `to`: buffer of plane.bytes() bytes.
void QuantizePlane(const QuantizedPlane& plane, const float* from, std::byte* to);

namespace reference {
void DequantizePlane(const QuantizedPlane& plane, const std::byte* from, float* to);
}  // namespace reference

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_QUANTIZED_QUANTIZED_PLANE_H_
