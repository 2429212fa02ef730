// GPU programs that quantize complete KV blocks, and that dequantize them for attention. The order
// of operations is that of worker/kernels/quantized/quantized_plane.h, so the bits are the same.
// proto/kv_quantization.h describes the layout of the bytes.
#ifndef HEARTH_WORKER_DEVICE_KV_QUANTIZE_PROGRAMS_H_
#define HEARTH_WORKER_DEVICE_KV_QUANTIZE_PROGRAMS_H_

#include <cstdint>

#include "worker/device/block_program.h"

namespace hearth {

// A KV block in both forms, each at its first layer; and the members of KvQuantization.
struct QuantizedBlock {
  std::byte* plain;  // floats [layer][K,V][kv_head][token][head_dim]
  std::byte* quantized;
  int16_t bits, group;
  int8_t axis_key, axis_value;
};

// One layer of a list of KV blocks, which the launch holds by value.
struct QuantizedSlices {
  static constexpr int kMost = 64;

  int count, number;  // number of blocks; number of the layer within its layer group
  int tokens, kv_heads, head_dim;
  QuantizedBlock blocks[kMost];
};

// A plane: the keys or the values of one KV head in one layer of one KV block.
struct QuantizedPlaneView {
  int tokens, dim, bits, group, axis, width, groups;
  float* plain;     // [tokens][dim]
  uint8_t* codes;   // [tokens][width]
  uint16_t* steps;  // [groups], then the least values [groups]; bfloat16
  uint8_t* end;     // end of the quantized slice, if this is the last plane of the slice; else null

  HEARTH_HOST_DEVICE QuantizedPlaneView(const QuantizedSlices& slices, int number) {
    const int planes = 2 * slices.kv_heads, plane = number % planes;
    const QuantizedBlock& block = slices.blocks[number / planes];
    tokens = slices.tokens;
    dim = slices.head_dim;
    bits = block.bits;
    group = block.group;
    axis = plane < slices.kv_heads ? block.axis_key : block.axis_value;
    width = dim * bits / 8;
    groups = tokens * dim / group;
    const int64_t values = static_cast<int64_t>(tokens) * dim;
    const int64_t bytes = static_cast<int64_t>(tokens) * width + 4 * static_cast<int64_t>(groups);
    const int64_t slice = (planes * bytes + 63) / 64 * 64;
    auto* const from = reinterpret_cast<uint8_t*>(block.quantized) + slices.number * slice;
    plain = reinterpret_cast<float*>(block.plain) +
            (static_cast<int64_t>(slices.number) * planes + plane) * values;
    codes = from + plane * bytes;
    steps = reinterpret_cast<uint16_t*>(codes + static_cast<int64_t>(tokens) * width);
    end = plane + 1 == planes ? from + slice : nullptr;
  }
  HEARTH_HOST_DEVICE int GroupOf(int token, int column) const {
    return axis == 0 ? (token * dim + column) / group : token / group * dim + column;
  }
  // Returns the index in `plain` of the group's member `i`. Members ascend by token, then by
  // column.
  HEARTH_HOST_DEVICE int MemberOf(int number, int i) const {
    return axis == 0 ? number * group + i : (number / dim * group + i) * dim + number % dim;
  }
};

HEARTH_HOST_DEVICE float WidenedBf16(uint16_t bits) {
  return exact::FloatOf(static_cast<uint32_t>(bits) << 16);
}

// Quantizes the blocks. One thread block for each plane.
struct QuantizeProgram {
  static constexpr int kWarps = 8, kThreads = kWarps * 32;
  struct Shared {};

  QuantizedSlices slices;

  HEARTH_HOST_DEVICE void Run(Shared*, BlockNumber block) const {
    const QuantizedPlaneView plane(slices, block.number);
    WaitForEarlier();
    AllowNextLaunch();
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        for (int group = warp * 32 + lane; group < plane.groups; group += kThreads) {
          SetScale(plane, group);
        }
      }
    }
    BARRIER();  // all scales are written
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        for (int i = warp * 32 + lane; i < plane.tokens * plane.width; i += kThreads) {
          plane.codes[i] = CodeOf(plane, i / plane.width, i % plane.width);
        }
        auto* const padding = reinterpret_cast<uint8_t*>(plane.steps + 2 * plane.groups);
        for (int i = warp * 32 + lane; plane.end != nullptr && padding + i < plane.end;
             i += kThreads) {
          padding[i] = 0;
        }
      }
    }
  }

 private:
  // Rounds to bfloat16, away from zero. Returns the bits.
  HEARTH_HOST_DEVICE static uint16_t AwayFromZero(float value) {
    const uint32_t bits = exact::BitsOf(value);
    return static_cast<uint16_t>((bits >> 16) + ((bits & 0xffff) != 0 ? 1 : 0));
  }
  HEARTH_HOST_DEVICE static void SetScale(const QuantizedPlaneView& plane, int group) {
    float least = kInfinity, largest = -kInfinity;
    bool is_finite = true;
    for (int i = 0; i < plane.group; ++i) {
      const float value = plane.plain[plane.MemberOf(group, i)];
      is_finite = is_finite && (exact::BitsOf(value) & 0x7f800000u) != 0x7f800000u;
      least = value < least ? value : least;
      largest = value > largest ? value : largest;
    }
    constexpr uint16_t kNan = 0x7fc0;
    const uint32_t bits = exact::BitsOf(least);
    const uint16_t down = bits >> 31 != 0 ? AwayFromZero(least) : static_cast<uint16_t>(bits >> 16);
    const auto steps = static_cast<float>((1u << plane.bits) - 1);
    const uint16_t step = AwayFromZero(exact::Div(exact::Sub(largest, WidenedBf16(down)), steps));
    plane.steps[group] = is_finite ? step : kNan;
    plane.steps[plane.groups + group] = is_finite ? down : kNan;
  }
  // Rounds down. REQUIRES: 1 <= value < 2^23.
  HEARTH_HOST_DEVICE static uint32_t WholePart(float value) {
    const uint32_t bits = exact::BitsOf(value);
    return ((bits & 0x7fffffu) | 0x800000u) >> (150 - (bits >> 23));
  }
  HEARTH_HOST_DEVICE static uint8_t CodeOf(const QuantizedPlaneView& plane, int token, int first) {
    const uint32_t most = (1u << plane.bits) - 1;
    uint32_t code = 0;
    for (int column = first, shift = 0; column < plane.dim;
         column += plane.width, shift += plane.bits) {
      const int group = plane.GroupOf(token, column);
      const float least = WidenedBf16(plane.steps[plane.groups + group]);
      const float value = exact::Sub(plane.plain[token * plane.dim + column], least);
      const float steps = exact::Add(exact::Div(value, WidenedBf16(plane.steps[group])), 0.5f);
      if (!(steps >= 1)) continue;  // also if `steps` is NaN
      code |= (steps >= static_cast<float>(most) ? most : WholePart(steps)) << shift;
    }
    return static_cast<uint8_t>(code);
  }
};

// Dequantizes the blocks. One thread block for each plane.
struct DequantizeProgram {
  static constexpr int kWarps = 8, kThreads = kWarps * 32;
  struct Shared {};

  QuantizedSlices slices;

  HEARTH_HOST_DEVICE void Run(Shared*, BlockNumber block) const {
    const QuantizedPlaneView plane(slices, block.number);
    WaitForEarlier();
    AllowNextLaunch();
    const uint32_t mask = (1u << plane.bits) - 1;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        for (int i = warp * 32 + lane; i < plane.tokens * plane.width; i += kThreads) {
          const int token = i / plane.width;
          const uint32_t code = plane.codes[i];
          for (int column = i % plane.width, shift = 0; column < plane.dim;
               column += plane.width, shift += plane.bits) {
            const int group = plane.GroupOf(token, column);
            const auto steps = static_cast<float>(code >> shift & mask);
            plane.plain[token * plane.dim + column] =
                exact::Fma(steps, WidenedBf16(plane.steps[group]),
                           WidenedBf16(plane.steps[plane.groups + group]));
          }
        }
      }
    }
  }
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_KV_QUANTIZE_PROGRAMS_H_
