// KvQuantization: how the rows of a whole chunk are kept in fewer bits, and the bytes of that.
//
// A plane is the keys, or the values, of one KV head of a chunk: [token][head_dim]. Of each group
// of its values the least one and a step are kept, in bfloat16, and of each value the number of
// steps above the least one, in `bits` bits. Groups lie along one axis, named as by transformers'
// QuantizedCacheConfig (quanto): 0: a token's channels, 64 by 64; -1: a channel's tokens.
//
// A plane's bytes: the values' numbers, token by token: of a row of D values byte i has those of
// the values i, i + D*bits/8, i + 2*D*bits/8, ..., the first in the lowest bits. Then the groups'
// steps, then their least values. Groups are in order of token, then of channel: [token][D/group]
// along axis 0, [token/group][D] along axis -1.
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
  uint32_t bits = 0;  // of a value: 8, 4 or 2; 0: nothing is quantized
  uint32_t group = 64;
  int axis_key = 0, axis_value = 0;  // 0 or -1

  bool is_on() const { return bits > 0; }
  // Of a plane; a multiple of 4.
  size_t CodeBytes(uint32_t tokens, uint32_t head_dim) const {
    return size_t{tokens} * head_dim * bits / 8;
  }
  size_t Groups(uint32_t tokens, uint32_t head_dim) const {
    return size_t{tokens} * head_dim / group;
  }
  size_t PlaneBytes(uint32_t tokens, uint32_t head_dim) const {
    return CodeBytes(tokens, head_dim) + 4 * Groups(tokens, head_dim);
  }
  // Whether a chunk of such rows can be quantized so; names the option. REQUIRES: it is on.
  absl::Status Check(uint32_t chunk_tokens, uint32_t head_dim) const;
};

inline bool operator==(const KvQuantization& a, const KvQuantization& b) {
  return a.bits == b.bits && a.group == b.group && a.axis_key == b.axis_key &&
         a.axis_value == b.axis_value;
}

// "bits=4,group=64,axis_key=0,axis_value=0".
std::string KvQuantizationText(const KvQuantization& quantization);
// Of some of these options; the rest are by default 4 bits in groups of 64, of a channel's tokens
// for keys and of a token's channels for values. Also of `residual`, the rows that are kept as they
// are: set to 0 where it is not given. kInvalidArgument names the option and what it may be.
absl::StatusOr<KvQuantization> ParseKvQuantization(absl::string_view text, uint32_t* residual);

}  // namespace hearth

#endif  // HEARTH_PROTO_KV_QUANTIZATION_H_
