// The numbers in exp, tanh and GELU: one set for all instruction sets and for the reference.
// Private to worker/kernels; functions.h makes them known to worker/device.
#ifndef HEARTH_WORKER_KERNELS_FUNCTION_CONSTANTS_H_
#define HEARTH_WORKER_KERNELS_FUNCTION_CONSTANTS_H_

#include <limits>

namespace hearth {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// exp(x) = 2^n exp(r), n the whole number nearest to x / ln 2: adding the shift rounds to it and
// leaves it in the lowest bits.
inline constexpr float kExpLog2e = 0x1.715476p+0f, kExpShift = 0x1.8p+23f;
inline constexpr float kExpLn2High = 0x1.62e4p-1f, kExpLn2Low = 0x1.7f7d1cp-20f;
// exp(r) = 1 + r + r^2 (...), the highest power first (Cephes, expf).
inline constexpr int kExpTermCount = 6;
inline constexpr float kExpTerms[kExpTermCount] = {1.9875691500e-4f, 1.3981999507e-3f,
                                                   8.3334519073e-3f, 4.1665795894e-2f,
                                                   1.6666665459e-1f, 5.0000001201e-1f};
// Below: 0, where a result would be subnormal or nearly so. Above: infinity.
inline constexpr float kExpLowest = -87.0f, kExpHighest = 0x1.62e42ep+6f;

// tanh(x) = x + x^3 (...) for small x (Cephes, tanhf), else from exp(2 |x|).
inline constexpr float kTanhNear = 0.625f;
inline constexpr int kTanhTermCount = 5;
inline constexpr float kTanhTerms[kTanhTermCount] = {-5.70498872745e-3f, 2.06390887954e-2f,
                                                     -5.37397155531e-2f, 1.33314422036e-1f,
                                                     -3.33332819422e-1f};

inline constexpr float kGeluCubic = 0.044715f;
inline constexpr float kGeluScale = -1.5957691216057308f;  // -2 sqrt(2 / pi)

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_FUNCTION_CONSTANTS_H_
