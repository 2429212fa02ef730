#include "bench/gpu/fused_dot_check.h"

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "bench/gpu/tensor_core_cases.h"
#include "worker/kernels/fused_dot.h"

namespace hearth {
namespace {

__extension__ typedef __int128 Wide;

constexpr int kTiles = 2;

struct Measured {
  const char* name;
  const char* digest;
};
// Digests of the outputs on an NVIDIA H200, measured on 2026-11-28. mma.sync and wgmma gave the
// same bits.
constexpr Measured kMeasured[] = {
    {"normal", "1882bd8ed490b787"},
    {"model", "20e7d01fd9f5a2ec"},
    {"wide exponents", "4f1df51b564bd9f6"},
    {"whole range", "c1d92baf0820385a"},
    {"bits next to the cut", "ec239e87fc5249f5"},
    {"pairs of bits", "83795ae5ab2a8452"},
    {"sum much larger", "4d04df2f81f4b7eb"},
    {"sum much smaller", "dda4e9333e23d61b"},
    {"sum cancels", "d79440a134a22325"},
    {"products cancel", "0580f81fd9d6492c"},
    {"subnormal inputs", "f404a58bb59ab857"},
    {"subnormal results", "3aac7f5ba33b9314"},
    {"totals below 2^-149", "ac181c65aebab39b"},
    {"zeros", "d62946668ef84a51"},
    {"zeros times large", "62a68c2c75a77023"},
    {"overflow", "4592a4ef4651f62f"},
    {"large products cancel", "da08db87f9b7e843"},
    {"infinities and NaNs", "258c890411aaaa41"},
    {"K 640", "e12cc445dca5b55c"},
    {"K 1152", "553a3387a452f50f"},
    {"K 2560", "75611c8b83f977d5"},
    {"K 10240", "49baafcd800632ef"},
};

bool AllFinite(const uint16_t* a, const uint16_t* b, float c) {
  bool finite = std::isfinite(c);
  for (int i = 0; i < kStepInputs; ++i) {
    finite &= std::isfinite(FloatOfBf16(a[i])) && std::isfinite(FloatOfBf16(b[i]));
  }
  return finite;
}

// Exponent of a zero: so small that it is never the largest exponent of a step.
constexpr int kOfZero = -2000;

// Returns the significand of `value`, in [1, 2), or below 1 if `value` is subnormal in float32.
// Stores the exponent in `*exponent`.
double Significand(double value, int* exponent) {
  double significand = std::frexp(value, exponent) * 2;
  --*exponent;
  if (value == 0) {
    *exponent = kOfZero;
  } else if (*exponent < -126) {
    significand = std::ldexp(significand, *exponent + 126);
    *exponent = -126;
  }
  return significand;
}

// Computes the step in double precision. All operations are exact, except the two truncations.
float StepOfDoubles(const uint16_t* a, const uint16_t* b, float c) {
  double terms[kStepInputs + 1];
  int exponents[kStepInputs + 1], largest = -133;
  for (int i = 0; i < kStepInputs; ++i) {
    int of_a, of_b;
    const double x = Significand(static_cast<double>(FloatOfBf16(a[i])), &of_a);
    const double y = Significand(static_cast<double>(FloatOfBf16(b[i])), &of_b);
    terms[i] = x * y;
    exponents[i] = of_a + of_b;
  }
  terms[kStepInputs] = Significand(static_cast<double>(c), &exponents[kStepInputs]);
  for (const int exponent : exponents) largest = std::max(largest, exponent);
  double total = 0;
  for (int i = 0; i <= kStepInputs; ++i) {
    total += std::trunc(std::ldexp(terms[i], 25 + exponents[i] - largest));  // the first truncation
  }
  int exponent;
  const double significand = Significand(std::ldexp(total, largest - 25), &exponent);
  const double cut = std::trunc(std::ldexp(significand, 23));        // the second truncation
  return static_cast<float>(std::ldexp(cut, exponent - 23)) + 0.0f;  // -0 becomes +0
}

// Computes the step with integers of 128 bits, in units of 2^kUnit; truncation is a division.
// REQUIRES: each product is zero or in [2^(kUnit + 14), 2^(kUnit + 115)), and the sum c is zero or
// in [2^(kUnit + 23), 2^(kUnit + 115)).
template <int kUnit>
float StepOfIntegers(const uint16_t* a, const uint16_t* b, float c) {
  const auto exact = [](long double value) { return static_cast<Wide>(std::ldexp(value, -kUnit)); };
  int of_a, of_b, largest = -133;
  for (int i = 0; i < kStepInputs; ++i) {
    Significand(static_cast<double>(FloatOfBf16(a[i])), &of_a);
    Significand(static_cast<double>(FloatOfBf16(b[i])), &of_b);
    largest = std::max(largest, of_a + of_b);
  }
  Significand(static_cast<double>(c), &of_a);
  largest = std::max(largest, of_a);
  // The shift count largest - 25 - kUnit is below 0 only if all terms are zero.
  const Wide last_bit = static_cast<Wide>(1) << std::max(0, largest - 25 - kUnit);
  // division truncates toward zero, as the device does
  Wide total = exact(static_cast<long double>(c)) / last_bit;
  for (int i = 0; i < kStepInputs; ++i) {
    const long double x = FloatOfBf16(a[i]), y = FloatOfBf16(b[i]);
    total += exact(x * y) / last_bit;
  }
  std::fesetround(FE_TOWARDZERO);
  const long double sum = static_cast<long double>(total);
  const volatile float result = static_cast<float>(std::ldexp(sum, largest - 25));
  std::fesetround(FE_TONEAREST);
  return result + 0.0f;
}

using Step = float (*)(const uint16_t* a, const uint16_t* b, float c);

// Compares FusedDot with the function step_of(name) for each class of input values. Skips classes
// for which step_of returns null, and steps with an infinity or a NaN.
bool CheckClasses(const char* check, Step (*step_of)(const std::string& name)) {
  uint64_t compared = 0, differing = 0;
  for (size_t step_class = 0; step_class < StepClasses().size(); ++step_class) {
    const Operands operands = StepOperands(step_class, kTiles);
    const Step step = step_of(operands.name);
    for (size_t i = 0; step != nullptr && i < operands.outputs(); ++i) {
      const uint16_t *a = operands.RowOfA(i), *b = operands.RowOfB(i);
      const float c = operands.c[i];
      if (!AllFinite(a, b, c)) continue;
      ++compared;
      differing += !SameResult(FusedDot(a, b, c), step(a, b, c));
    }
  }
  return ReportCheck(check, compared, differing);
}

bool CheckDoubles() {
  return CheckClasses("arithmetic of doubles from the same description, all classes",
                      [](const std::string&) { return StepOfDoubles; });
}

bool CheckIntegers() {
  // Classes of input values that fit into 128 bits, with the step function for the unit that they
  // need.
  static const std::map<std::string, Step> kSteps = {
      {"normal", StepOfIntegers<-78>},
      {"model", StepOfIntegers<-78>},
      {"bits next to the cut", StepOfIntegers<-78>},
      {"pairs of bits", StepOfIntegers<-78>},
      {"sum much larger", StepOfIntegers<-78>},
      {"sum much smaller", StepOfIntegers<-78>},
      {"sum cancels", StepOfIntegers<-78>},
      {"products cancel", StepOfIntegers<-78>},
      {"zeros", StepOfIntegers<-78>},
      {"zeros times large", StepOfIntegers<-110>},
      {"subnormal results", StepOfIntegers<-176>},
      {"totals below 2^-149", StepOfIntegers<-176>},
      {"least exponent", StepOfIntegers<-176>},
  };
  return CheckClasses("integers of 128 bits, float32 by the processor's rounding to zero",
                      [](const std::string& name) {
                        const auto at = kSteps.find(name);
                        return at == kSteps.end() ? nullptr : at->second;
                      });
}

// If truncating the terms loses no bit, the result of the tensor core's step is the exact sum,
// rounded once, toward zero (fused_dot.h).
bool CheckExactSums() {
  CaseRandom random(5);
  uint64_t differing = 0;
  constexpr uint64_t kCases = 200000;
  for (uint64_t turn = 0; turn < kCases; ++turn) {
    uint16_t a[kStepInputs], b[kStepInputs];
    const float c = static_cast<float>(random.Between(-(1 << 23), 1 << 23)) / (1 << 18);
    long double sum = c;
    for (int i = 0; i < kStepInputs; ++i) {
      a[i] = random.Bf16(-2, 2);
      b[i] = random.Bf16(-2, 2);
      sum += static_cast<long double>(FloatOfBf16(a[i])) * FloatOfBf16(b[i]);
    }
    std::fesetround(FE_TOWARDZERO);
    const volatile long double exact = sum;
    const volatile float cut = static_cast<float>(exact);
    std::fesetround(FE_TONEAREST);
    differing += !SameResult(FusedDot(a, b, c), cut + 0.0f);
  }
  return ReportCheck("exact sums in long double, where nothing is cut before the end", kCases,
                     differing);
}

float StepReordered(const uint16_t* a, const uint16_t* b, float c) {
  uint16_t p[kStepInputs], q[kStepInputs];
  for (int k = 0; k < kStepInputs; ++k) {
    p[k] = b[(k * 5 + 3) % kStepInputs];
    q[k] = a[(k * 5 + 3) % kStepInputs];
  }
  return FusedDot(p, q, c);
}

bool CheckOrder() {
  return CheckClasses("itself, the 16 in another order and A and B exchanged",
                      [](const std::string&) { return StepReordered; });
}

struct Known {
  const char* what;
  std::vector<float> a, b;  // all other products are +0
  float c;
  uint32_t result;
};
std::vector<Known> KnownSteps() {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto two = [](int exponent) { return std::ldexp(1.0f, exponent); };
  constexpr uint32_t kOne = 0x3f800000, kNan = 0x7fffffff, kInf = 0x7f800000;
  return {
      {"four of 2^-25 reach 2^-23", {1, 1, 1, 1}, std::vector<float>(4, two(-25)), 1, kOne + 1},
      {"four of 2^-26 are cut", {1, 1, 1, 1}, std::vector<float>(4, two(-26)), 1, kOne},
      {"minus 2^-25 reaches the bit below 1", {-1}, {two(-25)}, 1, kOne - 1},
      {"minus 2^-26 is cut", {-1}, {two(-26)}, 1, kOne},
      {"a half of the last bit is cut", {1}, {two(-24)}, 1, kOne},
      {"1.5 times 1.5 has the exponent 0", {1.5f}, {1.5f}, two(-25), 0x40100000},
      {"the smallest subnormal", {two(-100)}, {two(-49)}, 0, 1},
      {"half of it twice", {two(-100), two(-100)}, {two(-50), two(-50)}, 0, 1},
      {"half of it", {two(-100)}, {two(-50)}, 0, 0},
      {"minus half of it", {-two(-100)}, {two(-50)}, 0, 0},
      {"subnormal inputs", {two(-130)}, {two(100)}, 0, BitsOfFloat(two(-30))},
      {"2^127 twice", {two(100), two(100)}, {two(27), two(27)}, 0, kInf},
      {"2^200 less 2^200", {two(100), -two(100)}, {two(100), two(100)}, 1, 0},
      {"infinity", {inf}, {2}, 1, kInf},
      {"minus infinity", {inf}, {-2}, 1, kInf | 0x80000000},
      {"infinity less infinity", {inf, inf}, {1, -1}, 1, kNan},
      {"infinity times zero", {inf}, {0}, 1, kNan},
      {"an infinite sum", {1}, {1}, -inf, kInf | 0x80000000},
      {"infinity and the other sum", {inf}, {1}, -inf, kNan},
      {"NaN of A", {nan}, {0}, 1, kNan},
      {"NaN of B", {0}, {-nan}, 1, kNan},
      {"NaN of the sum", {0}, {0}, nan, kNan},
      {"zeros", {0}, {0}, -0.0f, 0},
      {"negative zeros", std::vector<float>(16, -0.0f), std::vector<float>(16, 1.0f), -0.0f, 0},
      {"zero times 2^127",
       {0, 1},
       {two(127), two(-60)},
       two(-70),
       BitsOfFloat(two(-60) + two(-70))},
      {"less 2^-158", {two(-49), -two(-58)}, {two(-100), two(-100)}, 0, 0},
      {"less 2^-159, which is cut", {two(-49), -two(-59)}, {two(-100), two(-100)}, 0, 1},
      {"a sum of 2^-149 less 2^-151", {-two(-51)}, {two(-100)}, two(-149), 0},
      {"a sum of 2^-149 less 2^-152, which is cut", {-two(-52)}, {two(-100)}, two(-149), 1},
      {"a product with a subnormal has the other exponent",
       {two(-133), two(-90)},
       {two(100), -two(32)},
       0,
       BitsOfFloat(two(-33))},
  };
}

bool CheckKnown() {
  uint64_t compared = 0, differing = 0;
  for (const Known& known : KnownSteps()) {
    uint16_t a[kStepInputs] = {}, b[kStepInputs] = {};
    for (size_t i = 0; i < known.a.size(); ++i) {
      a[i] = static_cast<uint16_t>(BitsOfFloat(known.a[i]) >> 16);
      b[i] = static_cast<uint16_t>(BitsOfFloat(known.b[i]) >> 16);
    }
    const uint32_t got = BitsOfFloat(FusedDot(a, b, known.c));
    ++compared;
    if (got == known.result) continue;
    ++differing;
    std::printf("  %s: got %08x, expected %08x\n", known.what, got, known.result);
  }
  return ReportCheck("steps worked out by hand", compared, differing);
}

}  // namespace

std::string MeasuredDigest(const std::string& name) {
  static_assert(std::size(kMeasured) == kMeasuredDigests);
  for (const Measured& measured : kMeasured) {
    if (name == measured.name) return measured.digest;
  }
  return "";
}

std::string Digest(const std::vector<float>& values) {
  uint64_t digest = 0xcbf29ce484222325;
  for (const float value : values) {
    digest = (digest ^ (std::isnan(value) ? kStepNan : BitsOfFloat(value))) * 0x100000001b3;
  }
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(digest));
  return text;
}

bool SameResult(float x, float y) {
  return BitsOfFloat(x) == BitsOfFloat(y) || (std::isnan(x) && std::isnan(y));
}

bool ReportCheck(const char* check, uint64_t compared, uint64_t differing) {
  std::printf("%-78s %9llu compared, %llu differ%s\n", check,
              static_cast<unsigned long long>(compared), static_cast<unsigned long long>(differing),
              differing == 0 && compared > 0 ? "" : "  FAILED");
  return differing == 0 && compared > 0;
}

int CheckFusedDot() {
  int failed = 0;
  for (const auto check : {CheckKnown, CheckDoubles, CheckIntegers, CheckExactSums, CheckOrder}) {
    failed += !check();
  }
  return failed;
}

}  // namespace hearth
