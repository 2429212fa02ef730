#include "worker/kernels/fused_tile.h"

#include <cstring>

namespace hearth {
namespace {

// Four values; one vector register of every x86-64 CPU.
constexpr int kLanes = 4, kQuarters = FusedTile::kOutputs / kLanes;
typedef float Lanes __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));

constexpr uint32_t kExponentBits = 0x7f800000, kMagnitudeBits = 0x7fffffff;
constexpr uint32_t kBias = 127;

// Limits of the exponents of weights and inputs: within these limits a product and its power of two
// are exact in float32.
constexpr int kLowest = -60, kHighest = 60;
bool IsPlain(uint16_t bits) {
  const int exponent = (bits >> 7 & 255) - static_cast<int>(kBias);
  return (bits & 0x7fff) == 0 || (exponent >= kLowest && exponent <= kHighest);
}

// Smallest exponent field of the largest term: the scale 2^(25 - largest) is then a normal number,
// and the cut leaves nothing of a subnormal sum.
constexpr uint32_t kLeastField = 30;

Lanes Load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}
Words Cut(Lanes value) { return reinterpret_cast<Words>(__builtin_convertvector(value, Ints)); }
Lanes All(float value) { return Lanes{value, value, value, value}; }

float PowerOf(float value) { return FloatOfBits(BitsOfFloat(value) & kExponentBits); }

}  // namespace

FusedTile::FusedTile(const Weights& weights) : is_plain_(true) {
  for (int output = 0; output < kOutputs; ++output) {
    for (int k = 0; k < kStepInputs; ++k) {
      const float weight = FloatOfBf16(weights[output][k]);
      is_plain_ = is_plain_ && IsPlain(weights[output][k]);
      weights_[k][output] = weight;
      powers_[k][output] = PowerOf(weight);
    }
  }
}

float FusedTile::OneOutput(int output, const uint16_t* row, float sum) const {
  uint16_t weights[kStepInputs];
  for (int k = 0; k < kStepInputs; ++k) {
    weights[k] = static_cast<uint16_t>(BitsOfFloat(weights_[k][output]) >> 16);
  }
  return FusedDot(weights, row, sum);
}

void FusedTile::AddTo(const uint16_t* row, float* sums) const {
  float x[kStepInputs], powers[kStepInputs];
  bool is_plain = is_plain_;
  for (int k = 0; k < kStepInputs; ++k) {
    is_plain = is_plain && IsPlain(row[k]);
    x[k] = FloatOfBf16(row[k]);
    powers[k] = PowerOf(x[k]);
  }
  if (!is_plain) {
    for (int i = 0; i < kOutputs; ++i) sums[i] = OneOutput(i, row, sums[i]);
    return;
  }
  // `largest`: the largest power of two among the terms. A term that is zero has the power 0.
  Lanes sum[kQuarters], largest[kQuarters], scale[kQuarters];
  for (int q = 0; q < kQuarters; ++q) {
    sum[q] = Load(sums + q * kLanes);
    largest[q] = reinterpret_cast<Lanes>(reinterpret_cast<Words>(sum[q]) & kExponentBits);
  }
  for (int k = 0; k < kStepInputs; ++k) {
    const Lanes of_input = All(powers[k]);
    for (int q = 0; q < kQuarters; ++q) {
      const Lanes power = Load(&powers_[k][q * kLanes]) * of_input;
      largest[q] = largest[q] > power ? largest[q] : power;
    }
  }
  // A conversion to an integer cuts toward zero. The sum and eight products are below 2^31.
  Words totals[2][kQuarters] = {};
  for (int q = 0; q < kQuarters; ++q) {
    const Words field = reinterpret_cast<Words>(largest[q]) >> 23;
    scale[q] =
        reinterpret_cast<Lanes>((2 * kBias + static_cast<uint32_t>(kStepBits) - field) << 23);
    totals[0][q] = Cut(sum[q] * scale[q]);
  }
  for (int k = 0; k < kStepInputs; ++k) {
    const Lanes input = All(x[k]);
    for (int q = 0; q < kQuarters; ++q) {
      totals[k / 8][q] += Cut(Load(&weights_[k][q * kLanes]) * input * scale[q]);
    }
  }
  for (int i = 0; i < kOutputs; ++i) {
    const uint32_t field = reinterpret_cast<Words>(largest[i / kLanes])[i % kLanes] >> 23;
    if (field == 0 && (BitsOfFloat(sums[i]) & kMagnitudeBits) == 0) {
      sums[i] = 0;  // all terms are zero
    } else if (field < kLeastField || field == 255) {
      sums[i] = OneOutput(i, row, sums[i]);
    } else {
      const int64_t low = static_cast<int32_t>(totals[0][i / kLanes][i % kLanes]);
      const int64_t high = static_cast<int32_t>(totals[1][i / kLanes][i % kLanes]);
      sums[i] = CutToFloat(low + high, static_cast<int>(field - kBias) - kStepBits);
    }
  }
}

}  // namespace hearth
