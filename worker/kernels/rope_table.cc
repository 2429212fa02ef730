#include "worker/kernels/rope_table.h"

#include <cassert>
#include <cmath>
#include <cstddef>

#include "worker/kernels/float_mode.h"

namespace hearth {
namespace {

// Polynomials of sine and cosine for |x| <= pi / 4 (fdlibm), highest power first.
constexpr double kSinTerms[] = {1.58969099521155010221e-10, -2.50507602534068634195e-08,
                                2.75573137070700676789e-06, -1.98412698298579493134e-04,
                                8.33333333332248946124e-03, -1.66666666666666324348e-01};
constexpr double kCosTerms[] = {-1.13596475577881948265e-11, 2.08757232129817482790e-09,
                                -2.75573143513906633035e-07, 2.48015872894767294178e-05,
                                -1.38888888888741095749e-03, 4.16666666666666019037e-02};
// pi / 2 as the sum of two doubles. For angles up to 2^20, the remainder after both FMAs is more
// precise than a float.
constexpr double kHalfPiHigh = 0x1.921fb54442d18p+0, kHalfPiLow = 0x1.1a62633145c07p-54;

double Polynomial(const double (&terms)[6], double z) {
  double sum = terms[0];
  for (int i = 1; i < 6; ++i) sum = sum * z + terms[i];
  return sum;
}

void CosAndSin(float angle, float* cos, float* sin) {
  const double x = static_cast<double>(angle);
  const double quarters = std::nearbyint(x * 0x1.45f306dc9c883p-1);
  const double rest = std::fma(-quarters, kHalfPiLow, std::fma(-quarters, kHalfPiHigh, x));
  const double z = rest * rest;
  const float s = static_cast<float>(rest + rest * z * Polynomial(kSinTerms, z));
  const float c = static_cast<float>(1.0 - z * 0.5 + z * z * Polynomial(kCosTerms, z));
  const int quarter = static_cast<int>(static_cast<int64_t>(quarters) & 3);
  *cos = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
  *sin = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
}

// ln 2 as the sum of two doubles. At least 20 low bits of kLn2High are 0, so its small multiples
// are exact.
constexpr double kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33;

// Returns the natural logarithm. x = 2^n m with m near 1; ln m = 2 (s + s^3 / 3 + s^5 / 5 + ...)
// with s = (m - 1) / (m + 1) and |s| <= 0.172.
double Logarithm(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0x1.6a09e667f3bcdp-1) {
    m = m * 2;
    exponent = exponent - 1;
  }
  const double s = (m - 1) / (m + 1), square = s * s;
  double sum = 1.0 / 23;
  for (int odd = 21; odd >= 1; odd -= 2) sum = sum * square + 1.0 / odd;
  return exponent * kLn2High + (exponent * kLn2Low + 2 * s * sum);
}

// Returns e^x. Uses the Taylor series for the remainder, which is at most ln 2 / 2.
double Exponential(double x) {
  const double n = std::nearbyint(x * 0x1.71547652b82fep+0);
  const double rest = (x - n * kLn2High) - n * kLn2Low;
  double sum = 1;
  for (int term = 16; term >= 1; --term) sum = sum * rest / term + 1;
  return std::ldexp(sum, static_cast<int>(n));
}

}  // namespace

// Each operation is rounded to float32, as in the library transformers; only its pow has no
// specified precision.
RopeTable::RopeTable(const RopeConfig& rope, int head_dim)
    : attention_factor_(rope.attention_factor) {
  assert(Supports(rope) && head_dim > 0 && head_dim % 2 == 0);
  const FloatMode mode;
  const double log_theta = Logarithm(static_cast<double>(static_cast<float>(rope.theta)));
  for (int i = 0; i < head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(head_dim);
    const float power = static_cast<float>(Exponential(log_theta * static_cast<double>(exponent)));
    inverse_frequencies_.push_back(InverseFrequency(rope, i / 2, power));
  }
}

void RopeTable::Extend(int64_t positions) {
  const FloatMode mode;
  if (positions <= positions_) return;
  const size_t size = static_cast<size_t>(positions * half());
  cos_.resize(size);
  sin_.resize(size);
  for (int64_t position = positions_; position < positions; ++position) {
    for (int64_t i = 0; i < half(); ++i) {
      const float angle =
          static_cast<float>(position) * inverse_frequencies_[static_cast<size_t>(i)];
      const size_t at = static_cast<size_t>(position * half() + i);
      CosAndSin(angle, &cos_[at], &sin_[at]);
      cos_[at] *= attention_factor_;
      sin_[at] *= attention_factor_;
    }
  }
  positions_ = positions;
}

ConstRows RopeTable::Cos(int64_t begin, int64_t count) const {
  assert(begin >= 0 && begin + count <= positions_);
  return {cos_.data() + begin * half(), count, half()};
}
ConstRows RopeTable::Sin(int64_t begin, int64_t count) const {
  assert(begin >= 0 && begin + count <= positions_);
  return {sin_.data() + begin * half(), count, half()};
}

}  // namespace hearth
