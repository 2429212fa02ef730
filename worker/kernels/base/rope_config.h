// RopeConfig: the rotary embedding of one kind of layer, and the inverse frequency of each pair of
// a head's columns.
//
// Thread safety: plain values.
#ifndef HEARTH_WORKER_KERNELS_BASE_ROPE_CONFIG_H_
#define HEARTH_WORKER_KERNELS_BASE_ROPE_CONFIG_H_

#include <algorithm>

namespace hearth {

struct RopeConfig {
  double theta = 10000.0;
  // Divides the frequencies: all of them ("linear" scaling), or, with YaRN, those after its ramp.
  double factor = 1.0;
  // YaRN: pair i of a head is divided to the degree (i - ramp_begin) / ramp_span, clamped to [0,
  // 1]. A span of 0: no YaRN.
  float ramp_begin = 0, ramp_span = 0;
  float attention_factor = 1;  // multiplies cosines and sines
};

// Returns the inverse frequency of pair `i`; `power` is theta^(2i / head_dim). Each operation is in
// float32, as in transformers.
inline float InverseFrequency(const RopeConfig& rope, int i, float power) {
  const auto factor = static_cast<float>(rope.factor);
  if (rope.ramp_span == 0) return 1.0f / power / factor;
  const float ramp = (static_cast<float>(i) - rope.ramp_begin) / rope.ramp_span;
  const float kept = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
  return 1.0f / (factor * power) * (1.0f - kept) + 1.0f / power * kept;
}

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_BASE_ROPE_CONFIG_H_
