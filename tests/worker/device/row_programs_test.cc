// Compares HeadNormProgram on the emulated device with the CPU's kernel, bit for bit.
#include "worker/device/row_programs.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "tests/worker/kernels/kernel_kit.h"
#include "worker/device/emulated_device.h"
#include "worker/device/program_list.h"
#include "worker/kernels/rope_table.h"
#include "worker/kernels/row_kernels.h"

namespace hearth {
namespace {

// Infinities and NaN in a row reach keys and values as on the CPU, in each form of the KV block.
TEST(HeadNormProgram, InfinityAndNanMatchCpuBits) {
  constexpr int kDim = 64, kHeads = 3, kSplit = 16, kPosition = 5;
  EmulatedDevice device;
  RopeTable rope({10000}, kDim);
  rope.Extend(kPosition + 1);
  const float *cos = rope.Cos(0, 1).data, *sin = rope.Sin(0, 1).data;
  Numbers numbers(1);
  std::vector<float> row, norm;
  for (int i = 0; i < kHeads * kDim; ++i) row.push_back(numbers.Value());
  for (int i = 0; i < kDim; ++i) norm.push_back(numbers.Value());
  float* const values = row.data() + 2 * kDim;
  values[0] = std::nanf("");
  values[1] = std::numeric_limits<float>::infinity();
  values[2] = -std::numeric_limits<float>::max();
  const int32_t count = 1, token = 0, position = kPosition;
  for (const bool are_finite : {false, true}) {
    std::vector<std::byte> block(size_t{2} * kSplit * kDim * 2);
    std::vector<BFloat16> want(2 * kDim);
    std::byte* const blocks[] = {block.data()};
    StepTable table = {};
    table.row_count = &count;
    table.tokens = &token;
    table.positions = &position;
    table.lists[0].row_blocks = blocks;
    const KvPlace place = {0, kSplit, 1, 1, kDim, 1, 0, true, are_finite};
    std::vector<float> qkv = row, kept = row;
    Launch(&device,
           HeadNormProgram{table, place, false, 1, 1e-6f, norm.data(), norm.data(), cos, sin,
                           qkv.data()},
           1);
    auto* const to = reinterpret_cast<std::byte*>(want.data());
    NormRotateAppend(
        {1, 1, kDim, norm.data(), norm.data(), 1e-6f, ElementType::kBFloat16, are_finite},
        {rope.Cos(kPosition, 1).data, rope.Sin(kPosition, 1).data, to, to + kDim * 2, kDim},
        kept.data());
    EXPECT_EQ(FirstDifference(qkv.data(), kept.data(), kDim), "");
    for (int half = 0; half < 2; ++half) {
      const std::byte* at = block.data() + (half * kSplit + kPosition) * kDim * 2;
      EXPECT_EQ(std::memcmp(at, want.data() + half * kDim, kDim * 2), 0) << are_finite << half;
    }
  }
}

}  // namespace
}  // namespace hearth
