// RopeConfig: parameters of the rotary position embedding (RoPE) of one kind of layer, and the
// inverse frequency of each rotated pair of columns.
//
// Thread safety: values.
#ifndef HEARTH_WORKER_KERNELS_BASE_ROPE_CONFIG_H_
#define HEARTH_WORKER_KERNELS_BASE_ROPE_CONFIG_H_

#include <algorithm>

namespace hearth {

struct RopeConfig {
  double theta = 10000.0;
  // Divisor of the frequencies: of all frequencies ("linear" scaling), or, with YaRN, of the
  // frequencies after its ramp.
  double factor = 1.0;
  // YaRN: the frequency of pair i is divided by `factor` to the degree (i - ramp_begin) /
  // ramp_span, clamped to [0, 1]. If ramp_span is 0, YaRN is off.
  float ramp_begin = 0, ramp_span = 0;
  float attention_factor = 1;  // factor of all cosines and sines
};

// Returns the inverse frequency of pair `i`. `power` is theta^(2i / head_dim). Each operation is
// rounded to float32, as in the library transformers.
inline float InverseFrequency(const RopeConfig& rope, int i, float power) {
  const auto factor = static_cast<float>(rope.factor);
  if (rope.ramp_span == 0) return 1.0f / power / factor;
  const float ramp = (static_cast<float>(i) - rope.ramp_begin) / rope.ramp_span;
  const float kept = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
  return 1.0f / (factor * power) * (1.0f - kept) + 1.0f / power * kept;
}

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_BASE_ROPE_CONFIG_H_
