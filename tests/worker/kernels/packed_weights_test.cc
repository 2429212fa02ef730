// The forms of weights: float32 with the same products, int8 by the written rule.
#include "worker/kernels/packed_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/worker/kernels/kernel_kit.h"
#include "tests/worker/model/weights_kit.h"

namespace hearth {
namespace {

constexpr int64_t kGroup = PackedWeights::kGroupInputs;

PackedWeights Int8Of(const std::vector<float>& stored, int64_t inputs) {
  const int64_t outputs = static_cast<int64_t>(stored.size()) / inputs;
  return PackedWeights::Pack({{stored.data(), outputs}}, ElementType::kInt8, inputs, InThisThread);
}

int ValueOf(const PackedWeights& weights, int64_t output, int64_t input) {
  const int64_t panel = output / PackedWeights::kPanelOutputs;
  const int64_t n = output % PackedWeights::kPanelOutputs;
  const Int8* group = weights.Panel<Int8>(panel, input / kGroup * kGroup);
  return group[weights.IndexInPanel(panel, input, n)].value;
}

// Subnormal numbers of float16 among them.
TEST(PackedWeights, AsFloat32GiveTheBitsOfWhatIsStored) {
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

// Each value is the nearest multiple of its group's scale, in panels of each width.
TEST(PackedWeights, AsInt8AreTheNearestMultiplesOfTheirGroupsScale) {
  Numbers numbers(4);
  const int64_t outputs = 48 + 17, inputs = 2 * kGroup + 5;
  std::vector<float> stored(static_cast<size_t>(outputs * inputs));
  for (float& weight : stored) weight = numbers.Value() * 3;
  const PackedWeights weights = Int8Of(stored, inputs);
  EXPECT_EQ(weights.type(), ElementType::kInt8);
  EXPECT_EQ(weights.bytes(), static_cast<size_t>(80 * (inputs + 3 * 4)));
  for (int64_t output = 0; output < outputs; ++output) {
    const float* row = stored.data() + output * inputs;
    for (int64_t input = 0; input < inputs; ++input) {
      const int64_t begin = input / kGroup * kGroup, end = std::min(begin + kGroup, inputs);
      float most = 0;
      for (int64_t i = begin; i < end; ++i) most = std::max(most, std::abs(row[i]));
      const float scale = weights.Scale(output / 48, input, output % 48);
      ASSERT_EQ(scale, most / 127) << output << ", " << input;
      ASSERT_EQ(ValueOf(weights, output, input), std::nearbyint(row[input] / scale))
          << output << ", " << input;
    }
  }
}

// Groups of zeros, of next to nothing, of what is no number, and ties.
TEST(PackedWeights, AsInt8TakeWhatACheckpointMayHold) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float tiny = std::numeric_limits<float>::denorm_min();
  const float most = std::numeric_limits<float>::max();
  //                                   zeros, subnormal, infinite, NaN, largest, ties
  const std::vector<float> stored = {0,   -0.0f, tiny, -tiny, 1,   -inf,
                                     nan, 1,     most, -most, 127, 2.5f};
  const PackedWeights weights = Int8Of(stored, 2);
  EXPECT_EQ(weights.Scale(0, 0, 0), 0);
  EXPECT_EQ(weights.Scale(0, 0, 1), 0);
  EXPECT_TRUE(std::isnan(weights.Scale(0, 0, 2)));
  EXPECT_TRUE(std::isnan(weights.Scale(0, 0, 3)));
  EXPECT_EQ(ValueOf(weights, 4, 0), 127);
  EXPECT_EQ(ValueOf(weights, 4, 1), -127);
  EXPECT_EQ(weights.Scale(0, 0, 5), 1);
  EXPECT_EQ(ValueOf(weights, 5, 1), 2);
  const float x[2] = {1, 1};
  std::vector<float> y(6);
  Workspace workspace;
  ForEachTarget([&](const std::string& target) {
    Product({x, 1, 2}, weights, {y.data(), 1, 6}, &workspace, InThisThread);
    EXPECT_EQ(y[0], 0) << target;
    EXPECT_EQ(y[1], 0) << target;
    EXPECT_TRUE(std::isnan(y[2])) << target;
    EXPECT_TRUE(std::isnan(y[3])) << target;
    EXPECT_EQ(y[4], 0) << target;
    EXPECT_EQ(y[5], 129) << target;
  });
}

}  // namespace
}  // namespace hearth
