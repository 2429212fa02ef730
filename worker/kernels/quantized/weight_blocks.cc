#include "worker/kernels/quantized/weight_blocks.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

namespace hearth {
namespace {

uint8_t Byte(const std::byte* at, int64_t i) { return static_cast<uint8_t>(at[i]); }
int SignedByte(const std::byte* at, int64_t i) { return static_cast<int8_t>(at[i]); }

float Half(const std::byte* at) {
  Float16 half;
  std::memcpy(&half.bits, at, sizeof half.bits);
  return WidenOne(half);
}

// Returns nibble i of 16 bytes: i < 16 is the low half of byte i, i >= 16 the high half of byte i -
// 16.
int Nibble(const std::byte* at, int64_t i) {
  const int byte = Byte(at, i % 16);
  return i < 16 ? byte & 15 : byte >> 4;
}

int Bit(const std::byte* at, int64_t i) { return Byte(at, i / 8) >> (i % 8) & 1; }

// 6-bit scale and 6-bit least value of a group of 32 values. In groups 4 to 7 each of the two
// numbers is stored in two pieces.
struct GroupScale {
  int scale, least;
};
GroupScale ScaleOfGroup(const std::byte* at, int64_t group) {
  if (group < 4) return {Byte(at, group) & 63, Byte(at, group + 4) & 63};
  return {(Byte(at, group + 4) & 15) | (Byte(at, group - 4) >> 6) << 4,
          (Byte(at, group + 4) >> 4) | (Byte(at, group) >> 6) << 4};
}

// Reads a run of Q4_K, or of Q5_K: then `high` holds the fifth bits, one byte for 8 groups.
void GroupRun(const std::byte* block, const std::byte* high, const std::byte* low, int64_t group,
              BlockRun* run) {
  const GroupScale scale = ScaleOfGroup(block + 4, group);
  run->d = Half(block) * static_cast<float>(scale.scale);
  run->m = -(Half(block + 2) * static_cast<float>(scale.least));
  for (int64_t i = 0; i < 32; ++i) {
    const int byte = Byte(low, group / 2 * 32 + i);
    run->q[i] = group % 2 == 0 ? byte & 15 : byte >> 4;
    if (high != nullptr) run->q[i] |= (Byte(high, i) >> group & 1) << 4;
  }
}

// Reads a run of Q6_K. For each half of 128 values, 64 bytes hold the low four bits and 32 bytes
// the high two bits.
void Q6KRun(const std::byte* block, int64_t number, BlockRun* run) {
  const int64_t half = number / 4, quarter = number % 4;
  run->d = Half(block + 208);
  run->zero = 32;
  for (int64_t i = 0; i < 32; ++i) {
    const int byte = Byte(block, half * 64 + quarter % 2 * 32 + i);
    const int low = quarter < 2 ? byte & 15 : byte >> 4;
    run->q[i] = low | (Byte(block + 128, half * 32 + i) >> (2 * quarter) & 3) << 4;
    run->part[i / 16] = SignedByte(block + 192, 2 * number + i / 16);
  }
}

// Reads a block of Q4_0, Q4_1, Q5_0 or Q5_1 (32 values).
void NibbleRun(ElementType type, const std::byte* block, BlockRun* run) {
  const bool has_least = HalvesOf(type).count == 2;
  const bool is_of_five = type == ElementType::kQ5_0 || type == ElementType::kQ5_1;
  const std::byte* bits = block + (has_least ? 4 : 2);
  run->d = Half(block);
  if (has_least) run->m = Half(block + 2);
  if (!has_least) run->zero = is_of_five ? 16 : 8;
  for (int64_t i = 0; i < 32; ++i) {
    run->q[i] = Nibble(bits + (is_of_five ? 4 : 0), i);
    if (is_of_five) run->q[i] |= Bit(bits, i) << 4;
  }
}

void WidenRun(ElementType type, const BlockRun& run, float* to) {
  const bool has_least = HalvesOf(type).count == 2;
  for (int64_t i = 0; i < 32; ++i) {
    const float scale = run.d * static_cast<float>(run.part[i / 16]);
    to[i] = scale * static_cast<float>(run.q[i]);
    if (has_least) to[i] = to[i] + run.m;
    if (run.zero != 0) to[i] = to[i] - scale * static_cast<float>(run.zero);
  }
}

void WidenPlain(ElementType type, const std::byte* row, int64_t values, float* to) {
  if (type == ElementType::kFloat32) {
    std::memcpy(to, row, static_cast<size_t>(values) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < values; ++i) {
    uint16_t bits;
    std::memcpy(&bits, row + i * 2, 2);
    to[i] = type == ElementType::kBFloat16 ? WidenOne(BFloat16{bits}) : WidenOne(Float16{bits});
  }
}

// Returns the nearest integer. REQUIRES: |value| < 2^22; the sum then has no fraction bits.
float Nearest(float value) {
  constexpr float kNoFractions = 0x1.8p+23f;
  return (value + kNoFractions) - kNoFractions;
}

// Returns the nearest float16; NaN if the nearest float16 is infinite or `value` is NaN.
Float16 NearestHalf(float value) {
  const float size = std::abs(value);
  if (!(size < 65520)) return {0x7e00};
  uint32_t bits;
  std::memcpy(&bits, &size, sizeof bits);
  bits = size < 0x1p-14f ? static_cast<uint32_t>(Nearest(size * 0x1p+24f))
                         : ((bits + 0xfff + (bits >> 13 & 1)) >> 13) - (112 << 10);
  return {static_cast<uint16_t>(bits | (std::signbit(value) ? 0x8000 : 0))};
}

// Returns the value with the largest magnitude; NaN if any value is NaN.
float Extreme(const float* from, int64_t values) {
  float most = 0;
  for (int64_t i = 0; i < values && !std::isnan(most); ++i) {
    if (!(std::abs(from[i]) <= std::abs(most))) most = from[i];
  }
  return most;
}

// Writes a block's scale to `block`, and its quantized values, clamped to [least, most], to
// `numbers`.
void Quantize(const float* from, int64_t values, float scale, float least, float most,
              std::byte* block, int (&numbers)[32]) {
  const Float16 half = NearestHalf(scale);
  const float d = WidenOne(half);
  std::memcpy(block, &half, sizeof half);
  for (int64_t i = 0; i < 32; ++i) {
    const bool is_number = i < values && std::abs(d) > 0;
    numbers[i] = is_number ? static_cast<int>(std::clamp(Nearest(from[i] / d), least, most)) : 0;
  }
}

}  // namespace

BlockRun RunOf(ElementType type, const std::byte* block, int64_t run) {
  BlockRun all;
  switch (type) {
    case ElementType::kQ8_0:
      all.d = Half(block);
      for (int64_t i = 0; i < 32; ++i) all.q[i] = SignedByte(block + 2, i);
      return all;
    case ElementType::kQ4_K:
      GroupRun(block, nullptr, block + 16, run, &all);
      return all;
    case ElementType::kQ5_K:
      GroupRun(block, block + 16, block + 48, run, &all);
      return all;
    case ElementType::kQ6_K:
      Q6KRun(block, run, &all);
      return all;
    default:
      NibbleRun(type, block, &all);
      return all;
  }
}

void QuantizeRow(ElementType type, const float* row, int64_t values, std::byte* to) {
  assert(type == ElementType::kQ8_0 || type == ElementType::kQ4_0);
  int numbers[32];
  for (int64_t i = 0; i < values; i += 32, to += FormOf(type).bytes) {
    const int64_t count = std::min<int64_t>(32, values - i);
    const float extreme = Extreme(row + i, count);
    if (type == ElementType::kQ8_0) {
      Quantize(row + i, count, std::abs(extreme) / 127, -127, 127, to, numbers);
      for (int n = 0; n < 32; ++n) to[2 + n] = static_cast<std::byte>(numbers[n]);
    } else {
      Quantize(row + i, count, extreme / -8, -8, 7, to, numbers);
      for (int n = 0; n < 16; ++n) {
        to[2 + n] = static_cast<std::byte>((numbers[n] + 8) | (numbers[n + 16] + 8) << 4);
      }
    }
  }
}

void WidenRow(ElementType type, const std::byte* row, int64_t values, float* to) {
  if (!IsOfBlocks(type)) return WidenPlain(type, row, values, to);
  const ElementForm form = FormOf(type);
  assert(values % form.values == 0);
  for (int64_t i = 0; i < values; i += form.values, row += form.bytes) {
    for (int64_t run = 0; run < form.values / 32; ++run) {
      WidenRun(type, RunOf(type, row, run), to + i + 32 * run);
    }
  }
}

bool ScalesAreFinite(ElementType type, const std::byte* row, int64_t values) {
  if (!IsOfBlocks(type)) return true;
  const BlockHalves halves = HalvesOf(type);
  const ElementForm form = FormOf(type);
  for (int64_t i = 0; i < values; i += form.values, row += form.bytes) {
    for (int64_t half = 0; half < halves.count; ++half) {
      if (!std::isfinite(Half(row + halves.at + 2 * half))) return false;
    }
  }
  return true;
}

}  // namespace hearth
