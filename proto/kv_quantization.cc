#include "proto/kv_quantization.h"

#include <set>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace hearth {
namespace {

constexpr uint32_t kDefaultBits = 4, kMaxGroup = 1024;
// By default keys are grouped by channel: in keys, some channels are large for every token, and a
// group of several channels would get a coarse step from its largest channel.
constexpr int kDefaultAxisKey = -1;
constexpr char kOptions[] = "bits, group, axis_key, axis_value, residual";

absl::Status Wrong(absl::string_view option, absl::string_view value, absl::string_view may_be) {
  return absl::InvalidArgumentError(absl::StrCat(absl::CEscape(option.substr(0, 80)), ": ", may_be,
                                                 "; got \"", absl::CEscape(value.substr(0, 80)),
                                                 "\""));
}

bool IsAxis(int axis) { return axis == 0 || axis == -1; }
bool AreBits(int bits) { return bits == 8 || bits == 4 || bits == 2; }

absl::Status CheckAxis(const char* option, int axis, uint32_t group, uint32_t chunk_tokens,
                       uint32_t head_dim) {
  const uint32_t run = axis == 0 ? head_dim : chunk_tokens;
  if (run % group == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("group: ", group, " does not divide ",
                                                 axis == 0 ? "head_dim, " : "a chunk's tokens, ",
                                                 run, ", along ", option, " ", axis));
}

absl::Status SetOption(absl::string_view name, absl::string_view value, KvQuantization* to,
                       uint32_t* residual) {
  int number = 0;
  if (!absl::SimpleAtoi(value, &number)) return Wrong(name, value, "must be a number");
  if (name == "bits") {
    if (!AreBits(number)) return Wrong(name, value, "must be 8, 4 or 2");
    to->bits = static_cast<uint32_t>(number);
  } else if (name == "group") {
    if (number < 1 || number > static_cast<int>(kMaxGroup)) {
      return Wrong(name, value, absl::StrCat("must be 1 to ", kMaxGroup));
    }
    to->group = static_cast<uint32_t>(number);
  } else if (name == "axis_key" || name == "axis_value") {
    if (!IsAxis(number)) {
      return Wrong(name, value, "must be 0 (group along channels) or -1 (group along tokens)");
    }
    (name == "axis_key" ? to->axis_key : to->axis_value) = number;
  } else if (name == "residual") {
    if (number < 1) return Wrong(name, value, "must be above 0");
    *residual = static_cast<uint32_t>(number);
  } else {
    return Wrong(name, value, absl::StrCat("is not an option; known options: ", kOptions));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status KvQuantization::Check(uint32_t chunk_tokens, uint32_t head_dim) const {
  const bool known = AreBits(static_cast<int>(bits)) && group >= 1 && group <= kMaxGroup &&
                     IsAxis(axis_key) && IsAxis(axis_value);
  if (!known) return absl::InvalidArgumentError(KvQuantizationText(*this) + ": out of range");
  if (head_dim % (32 / bits) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("bits: ", bits, " bits of head_dim ", head_dim,
                                                   " elements must fill words of 32 bits"));
  }
  const absl::Status keys = CheckAxis("axis_key", axis_key, group, chunk_tokens, head_dim);
  if (!keys.ok()) return keys;
  return CheckAxis("axis_value", axis_value, group, chunk_tokens, head_dim);
}

std::string KvQuantizationText(const KvQuantization& quantization) {
  return absl::StrCat("bits=", quantization.bits, ",group=", quantization.group,
                      ",axis_key=", quantization.axis_key, ",axis_value=", quantization.axis_value);
}

// Longest accepted text; all options together are much shorter.
constexpr size_t kMaxTextBytes = 256;

absl::StatusOr<KvQuantization> ParseKvQuantization(absl::string_view text, uint32_t* residual) {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat("kv_quantization: has ", text.size(),
                                                   " bytes, more than the limit, ", kMaxTextBytes));
  }
  KvQuantization quantization;
  quantization.bits = kDefaultBits;
  quantization.axis_key = kDefaultAxisKey;
  *residual = 0;
  std::set<std::string> seen;
  for (absl::string_view option : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(option, absl::MaxSplits('=', 1));
    if (!seen.insert(std::string(parts.first)).second) {
      return Wrong(parts.first, parts.second, "must be given once");
    }
    const absl::Status set = SetOption(parts.first, parts.second, &quantization, residual);
    if (!set.ok()) return set;
  }
  return quantization;
}

}  // namespace hearth
