// Compares ArgmaxProgram on the emulated device with the sampler's scan of logits on the CPU.
#include "worker/device/argmax_program.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "worker/device/emulated_device.h"
#include "worker/device/program_list.h"
#include "worker/kernels/logit_rows.h"

namespace hearth {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Returns the greatest key of each row: one launch divides each row into `slices` slices, a second
// launch combines the slices.
std::vector<GreedyKey> KeysOf(const std::vector<float>& logits, int columns, int slices) {
  EmulatedDevice device;
  DeviceArena arena(&device);
  const auto rows = logits.size() / static_cast<size_t>(columns);
  auto* const from = arena.Take<float>(logits.size());
  auto* const parts = arena.Take<GreedyKey>(rows * static_cast<size_t>(slices));
  auto* const all = arena.Take<GreedyKey>(rows);
  device.CopyIn(from, logits.data(), logits.size() * sizeof(float));
  Launch(&device, ArgmaxProgram{from, nullptr, columns, slices, parts},
         static_cast<int>(rows) * slices);
  Launch(&device, ArgmaxProgram{nullptr, parts, slices, 1, all}, static_cast<int>(rows));
  std::vector<GreedyKey> keys(rows);
  device.CopyOut(keys.data(), all, rows * sizeof(GreedyKey));
  return keys;
}

// Compares the tokens of all rows with the CPU's, for several numbers of thread blocks.
void ExpectCpuTokens(const std::vector<float>& logits, int columns) {
  for (const int slices : {1, 2, 3, 32, 40}) {
    const std::vector<GreedyKey> keys = KeysOf(logits, columns, slices);
    for (size_t row = 0; row < keys.size(); ++row) {
      const float* const at = logits.data() + row * static_cast<size_t>(columns);
      const LogitScan scan = ScanLogits(at, columns);
      EXPECT_EQ(IsFiniteKey(keys[row]), scan.all_finite) << "row " << row;
      int64_t want = scan.greatest;
      for (int i = columns - 1; !scan.all_finite && i >= 0; --i)
        want = std::isfinite(at[i]) ? want : i;
      EXPECT_EQ(IdOfKey(keys[row]), want) << "row " << row << ", " << slices << " slices";
    }
  }
}

TEST(ArgmaxProgram, RandomRowsMatchCpu) {
  std::mt19937 numbers(1);
  for (const int columns : {1, 31, 40, 257, 1000, 9001}) {
    std::vector<float> logits;
    // few different values, so that most maxima are equal and lie in different blocks
    for (int i = 0; i < 3 * columns; ++i) {
      logits.push_back(static_cast<float>(numbers() % 7) - static_cast<float>(i % 3) * 4);
    }
    ExpectCpuTokens(logits, columns);
    for (float& logit : logits) logit = std::ldexp(static_cast<float>(numbers()), -31) - 0.5F;
    ExpectCpuTokens(logits, columns);
  }
}

TEST(ArgmaxProgram, SpecialValuesMatchCpu) {
  constexpr int kColumns = 300;
  const std::vector<std::vector<std::pair<int, float>>> rows = {
      {{7, 0.0F}, {150, -0.0F}},       // equal maxima of different signs
      {{7, -0.0F}, {150, 0.0F}},       // the first maximum is -0
      {{299, -2.0F}},                  // the last column
      {{0, -2.0F}, {299, -2.0F}},      // the first and the last block
      {{31, 1e-45F}, {32, 0.0F}},      // a subnormal number
      {{9, -3.4e38F}, {10, 3.4e38F}},  // nearly the limits
      {{5, kNan}, {1, 9.0F}},          // errors name the first value that is not finite
      {{200, -kNan}, {100, kInfinity}},
      {{250, -kInfinity}, {20, 9.0F}},
      {{299, kInfinity}, {298, -kInfinity}}};
  std::vector<float> logits(rows.size() * kColumns, -3);
  for (size_t row = 0; row < rows.size(); ++row) {
    for (const auto& [column, value] : rows[row]) {
      logits[row * kColumns + static_cast<size_t>(column)] = value;
    }
  }
  ExpectCpuTokens(logits, kColumns);
  std::vector<float> lowest(kColumns, -std::numeric_limits<float>::max());
  ExpectCpuTokens(lowest, kColumns);
}

}  // namespace
}  // namespace hearth
