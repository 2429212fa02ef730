// Tests of the weight forms: float32 gives the same products as the stored form; Q8_0 and Q4_0
// follow their documented rules.
#include "worker/kernels/packed_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/worker/kernels/kernel_kit.h"
#include "tests/worker/model/weights_kit.h"
#include "worker/kernels/quantized/weight_blocks.h"

namespace hearth {
namespace {

// The stored values include subnormal float16 numbers.
TEST(PackedWeights, Float32FormKeepsWeightValues) {
  for (const ElementType type :
       {ElementType::kBFloat16, ElementType::kFloat16, ElementType::kFloat32}) {
    Numbers numbers(3);
    const ProductShape shape{111, 77};
    const std::vector<std::byte> stored = StoredWeights(shape, type, &numbers);
    const std::vector<WeightRows> rows = {{stored.data(), 11, type}, {stored.data(), 100, type}};
    const PackedWeights as_stored = PackedWeights::Pack(rows, type, shape.inputs, InThisThread);
    const PackedWeights wide =
        PackedWeights::Pack(rows, ElementType::kFloat32, shape.inputs, InThisThread);
    EXPECT_EQ(wide.type(), ElementType::kFloat32);
    std::vector<float> of_stored(shape.inputs), of_wide(shape.inputs);
    for (int64_t output = 0; output < shape.outputs; ++output) {
      as_stored.WidenOutput(output, of_stored.data());
      wide.WidenOutput(output, of_wide.data());
      const int64_t row = output < 11 ? output : output - 11;
      for (int64_t i = 0; i < shape.inputs; ++i) {
        const std::byte* at = stored.data() + (row * shape.inputs + i) * ElementBytes(type);
        float value = 0;
        uint16_t half = 0;
        std::memcpy(type == ElementType::kFloat32 ? static_cast<void*>(&value) : &half, at,
                    ElementBytes(type));
        if (type == ElementType::kBFloat16) value = WidenOne(BFloat16{half});
        if (type == ElementType::kFloat16) value = WidenOne(Float16{half});
        ASSERT_EQ(of_stored[i], value) << output << ", " << i;
        ASSERT_EQ(of_wide[i], value) << output << ", " << i;
      }
    }
    FencedRows x(9, shape.inputs), y(9, shape.outputs);
    x.Fill(&numbers);
    const std::vector<float> want = ReferenceRows(x, 9, as_stored);
    Workspace workspace;
    Product({x.Row(0), 9, x.stride()}, wide, {y.Row(0), 9, y.stride()}, &workspace, InThisThread);
    for (int64_t row = 0; row < 9; ++row) {
      EXPECT_EQ(FirstDifference(y.Row(row), want.data() + row * shape.outputs, shape.outputs), "");
    }
  }
}

// The panels have different widths; the last block of a row is partial.
TEST(PackedWeights, Q8RoundsToNearestScaleMultiple) {
  Numbers numbers(4);
  const int64_t outputs = 48 + 17, inputs = 2 * 32 + 5;
  std::vector<float> stored(static_cast<size_t>(outputs * inputs));
  for (float& weight : stored) weight = numbers.Value() * 3;
  const PackedWeights weights =
      PackedWeights::Pack({{stored.data(), outputs}}, ElementType::kQ8_0, inputs, InThisThread);
  EXPECT_EQ(weights.bytes(), size_t{80} * 3 * 34);
  std::vector<float> wide(static_cast<size_t>(inputs));
  for (int64_t output = 0; output < outputs; ++output) {
    const float* row = stored.data() + output * inputs;
    weights.WidenOutput(output, wide.data());
    for (int64_t input = 0; input < inputs; ++input) {
      const int64_t begin = input / 32 * 32, end = std::min<int64_t>(begin + 32, inputs);
      float most = 0;
      for (int64_t i = begin; i < end; ++i) most = std::max(most, std::abs(row[i]));
      const float step = most / 127 * (1 + 0x1p-11f);  // the scale has 11 bits
      ASSERT_NEAR(wide[input], row[input], step * 0.501f) << output << ", " << input;
    }
  }
  FencedRows x(9, inputs), y(9, outputs);
  x.Fill(&numbers);
  const std::vector<float> want = ReferenceRows(x, 9, weights);
  Workspace workspace;
  ForEachTarget([&](const std::string& target) {
    for (const int64_t rows : {1, 9}) {
      Product({x.Row(0), rows, x.stride()}, weights, {y.Row(0), rows, y.stride()}, &workspace,
              InThisThread);
      for (int64_t row = 0; row < rows; ++row) {
        EXPECT_EQ(FirstDifference(y.Row(row), want.data() + row * outputs, outputs), "")
            << target << ", row " << row << " of " << rows;
      }
    }
  });
}

// Quantizes values to one Q8_0 block. Returns the bits of the scale, followed by the quantized
// values.
std::vector<int> BlockOf(std::vector<float> values) {
  std::vector<std::byte> block(34);
  QuantizeRow(ElementType::kQ8_0, values.data(), static_cast<int64_t>(values.size()), block.data());
  std::vector<int> numbers = {static_cast<int>(block[0]) | static_cast<int>(block[1]) << 8};
  for (size_t i = 0; i < values.size(); ++i) numbers.push_back(static_cast<int8_t>(block[2 + i]));
  return numbers;
}

// Blocks of zeros, of tiny values, with NaN or infinity, with values too large for float16, and
// with ties.
TEST(PackedWeights, Q8HandlesSpecialValues) {
  using testing::ElementsAre;
  constexpr int kOne = 0x3c00, kNan = 0x7e00;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_THAT(BlockOf({0, -0.0f}), ElementsAre(0, 0, 0));
  EXPECT_THAT(BlockOf({0x1p-149f, -1e-7f}), ElementsAre(0, 0, 0));
  EXPECT_THAT(BlockOf({127 * 0x1p-24f, 0x1p-24f, -0x1p-23f}), ElementsAre(1, 127, 1, -2));
  EXPECT_THAT(BlockOf({-190 * 0x1p-24f, 0x1p-24f}), ElementsAre(1, -127, 1));
  EXPECT_THAT(BlockOf({1, -kInf}), ElementsAre(kNan, 0, 0));
  EXPECT_THAT(BlockOf({std::numeric_limits<float>::quiet_NaN(), 1}), ElementsAre(kNan, 0, 0));
  EXPECT_THAT(BlockOf({127 * 65504.0f, -1e6f}), ElementsAre(0x7bff, 127, -15));
  EXPECT_THAT(BlockOf({127 * 65536.0f, 1}), ElementsAre(kNan, 0, 0));
  EXPECT_THAT(BlockOf({127, 2.5f, -3.5f, -127}), ElementsAre(kOne, 127, 2, -4, -127));
  // Ties of the scale: 127 times the middle between two adjacent float16 numbers.
  EXPECT_THAT(BlockOf({127 * (1 + 0x1p-11f)}), ElementsAre(kOne, 127));
  EXPECT_THAT(BlockOf({127 * (1 + 3 * 0x1p-11f)}), ElementsAre(kOne + 2, 127));
}

// The value with the largest magnitude becomes -8 steps, so the scale may be negative.
TEST(PackedWeights, Q4ScaleComesFromLargestMagnitude) {
  const auto block = [](const std::vector<float>& values) {
    std::vector<std::byte> bytes(18);
    QuantizeRow(ElementType::kQ4_0, values.data(), static_cast<int64_t>(values.size()),
                bytes.data());
    std::vector<float> wide(32);
    WidenRow(ElementType::kQ4_0, bytes.data(), 32, wide.data());
    wide.resize(values.size() + 1);  // one value more, which must be 0
    return wide;
  };
  using testing::ElementsAre;
  EXPECT_THAT(block({8, -7, 3.5f, -2.5f, 0, -8}), ElementsAre(8, -7, 4, -2, 0, -7, 0));
  EXPECT_THAT(block({-4, 4, 0.26f}), ElementsAre(-4, 3.5f, 0.5f, 0));
  EXPECT_THAT(block({0, -0.0f}), ElementsAre(0, 0, 0));
  EXPECT_THAT(block({std::numeric_limits<float>::infinity(), 1}), testing::Each(testing::IsNan()));
  std::vector<float> all;
  for (int i = 0; i < 32; ++i) all.push_back(static_cast<float>(i % 16 - 8) / 4);
  std::vector<float> want = all;
  want.resize(33);
  EXPECT_EQ(block(all), want) << "both halves of each byte";
}

}  // namespace
}  // namespace hearth
