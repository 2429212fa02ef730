#include "worker/kernels/quantized/quantized_plane.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "worker/kernels/base/element.h"

namespace hearth {
namespace {

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Rounds to bfloat16, away from zero. Returns the bits.
uint16_t AwayFromZero(float value) {
  const uint32_t bits = BitsOf(value);
  return static_cast<uint16_t>((bits >> 16) + ((bits & 0xffff) != 0 ? 1 : 0));
}

uint16_t RoundedDown(float value) {
  return std::signbit(value) ? AwayFromZero(value) : static_cast<uint16_t>(BitsOf(value) >> 16);
}

struct GroupRange {
  float least = std::numeric_limits<float>::infinity();
  float largest = -std::numeric_limits<float>::infinity();
  bool finite = true;

  void Add(float value) {
    finite = finite && std::isfinite(value);
    least = value < least ? value : least;
    largest = value > largest ? value : largest;
  }
};

// Step and least value of a group, as bits of bfloat16.
struct GroupScale {
  uint16_t step, least;
};

GroupScale ScaleOf(const GroupRange& range, uint32_t bits) {
  constexpr uint16_t kNan = 0x7fc0;
  if (!range.finite) return {kNan, kNan};
  const uint16_t least = RoundedDown(range.least);
  const float steps = static_cast<float>((1u << bits) - 1);
  return {AwayFromZero((range.largest - WidenOne(BFloat16{least})) / steps), least};
}

uint32_t NumberOf(float value, const GroupScale& scale, uint32_t most) {
  const float step = WidenOne(BFloat16{scale.step});
  const float steps = (value - WidenOne(BFloat16{scale.least})) / step + 0.5f;
  if (!(steps >= 1)) return 0;  // also true if `steps` is NaN
  return steps >= static_cast<float>(most) ? most : static_cast<uint32_t>(steps);
}

void Put(std::byte* to, uint16_t bits) { std::memcpy(to, &bits, sizeof bits); }
float Get(const std::byte* from) {
  uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return WidenOne(BFloat16{bits});
}

}  // namespace

void QuantizePlane(const QuantizedPlane& plane, const float* from, std::byte* to) {
  const int64_t values = plane.tokens * plane.head_dim;
  const int64_t width = plane.width(), bits = plane.form.bits;
  const size_t groups = static_cast<size_t>(values / plane.form.group);
  std::vector<GroupRange> ranges(groups);
  for (int64_t token = 0; token < plane.tokens; ++token) {
    for (int64_t column = 0; column < plane.head_dim; ++column) {
      const float value = from[token * plane.head_dim + column];
      ranges[static_cast<size_t>(plane.GroupOf(token, column))].Add(value);
    }
  }
  std::byte* steps = to + plane.tokens * width;
  std::byte* leasts = steps + 2 * groups;
  std::vector<GroupScale> scales;
  for (size_t group = 0; group < groups; ++group) {
    scales.push_back(ScaleOf(ranges[group], plane.form.bits));
    Put(steps + 2 * group, scales[group].step);
    Put(leasts + 2 * group, scales[group].least);
  }
  std::memset(to, 0, static_cast<size_t>(plane.tokens * width));
  const uint32_t most = (1u << bits) - 1;
  for (int64_t token = 0; token < plane.tokens; ++token) {
    for (int64_t column = 0; column < plane.head_dim; ++column) {
      const GroupScale& scale = scales[static_cast<size_t>(plane.GroupOf(token, column))];
      const uint32_t number = NumberOf(from[token * plane.head_dim + column], scale, most);
      to[token * width + column % width] |=
          static_cast<std::byte>(number << (column / width * bits));
    }
  }
}

namespace reference {

void DequantizePlane(const QuantizedPlane& plane, const std::byte* from, float* to) {
  const int64_t width = plane.width(), bits = plane.form.bits;
  const std::byte* steps = from + plane.tokens * width;
  const std::byte* leasts = steps + 2 * (plane.tokens * plane.head_dim / plane.form.group);
  const uint32_t mask = (1u << bits) - 1;
  for (int64_t token = 0; token < plane.tokens; ++token) {
    for (int64_t column = 0; column < plane.head_dim; ++column) {
      const int64_t group = plane.GroupOf(token, column);
      const auto byte = static_cast<uint32_t>(from[token * width + column % width]);
      const auto number = static_cast<float>(byte >> (column / width * bits) & mask);
      to[token * plane.head_dim + column] =
          number * Get(steps + 2 * group) + Get(leasts + 2 * group);
    }
  }
}

}  // namespace reference
}  // namespace hearth
