// KvQuantization: how the rows of a whole chunk are stored in fewer bits, and their size.
//
// A plane holds the keys, or the values, of one KV head of a chunk: [token][head_dim]. Each group
// of `group` elements stores its minimum and a step, both in bfloat16. Each element stores the
// number of steps above the minimum in `bits` bits. Groups lie along one axis, named as in
// transformers' QuantizedCacheConfig (quanto): 0: channels of one token; -1: tokens of one channel.
//
// Bytes of a plane: first the elements' numbers of steps, token by token. In a row of D elements,
// byte i holds elements i, i + D*bits/8, i + 2*D*bits/8, ..., the first in the lowest bits. Then
// the steps of all groups, then their minimums. Groups are ordered by token, then by channel:
// [token][D/group] along axis 0, [token/group][D] along axis -1.
//
// Thread safety: values and pure functions.
#ifndef HEARTH_PROTO_KV_QUANTIZATION_H_
#define HEARTH_PROTO_KV_QUANTIZATION_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace hearth {

struct KvQuantization {
  uint32_t bits = 0;  // bits per element: 8, 4 or 2; 0: not quantized
  uint32_t group = 64;
  int axis_key = 0, axis_value = 0;  // axis of the groups in keys and in values: 0 or -1

  bool is_on() const { return bits > 0; }
  // Returns the bytes for the step numbers of a plane, a multiple of 4.
  size_t CodeBytes(uint32_t tokens, uint32_t head_dim) const {
    return size_t{tokens} * head_dim * bits / 8;
  }
  size_t Groups(uint32_t tokens, uint32_t head_dim) const {
    return size_t{tokens} * head_dim / group;
  }
  size_t PlaneBytes(uint32_t tokens, uint32_t head_dim) const {
    return CodeBytes(tokens, head_dim) + 4 * Groups(tokens, head_dim);
  }
  // Checks that chunks of this shape can be quantized with these options. kInvalidArgument names
  // the option. REQUIRES: is_on().
  absl::Status Check(uint32_t chunk_tokens, uint32_t head_dim) const;
};

inline bool operator==(const KvQuantization& a, const KvQuantization& b) {
  return a.bits == b.bits && a.group == b.group && a.axis_key == b.axis_key &&
         a.axis_value == b.axis_value;
}

// Returns the options as text: "bits=4,group=64,axis_key=0,axis_value=0".
std::string KvQuantizationText(const KvQuantization& quantization);
// Parses options; those not given have the defaults bits=4,group=64,axis_key=-1,axis_value=0. Also
// parses `residual`, the number of rows that are not quantized; sets it to 0 if it is not given.
// kInvalidArgument names the option and its allowed values.
absl::StatusOr<KvQuantization> ParseKvQuantization(absl::string_view text, uint32_t* residual);

}  // namespace hearth

#endif  // HEARTH_PROTO_KV_QUANTIZATION_H_
