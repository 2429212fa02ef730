#include "worker/kernels/row_kernels.h"

#include <gtest/gtest.h>

#include "tests/worker/kernels/kernel_kit.h"
#include "worker/kernels/functions.h"
#include "worker/kernels/reference.h"
#include "worker/kernels/rope_table.h"

namespace hearth {
namespace {

// Returns row widths: every length of the last vector, and head and hidden sizes of each Gemma 3.
std::vector<int64_t> Widths() {
  std::vector<int64_t> widths;
  for (int64_t width = 1; width <= 33; ++width) widths.push_back(width);
  for (const int64_t width : {128, 256, 640, 1152, 2048, 2560, 3840}) widths.push_back(width);
  return widths;
}

// Compares rows on each target and at each width: run(width, a, b, scale, output) computes a row,
// and want(width, a, b, scale, output) computes the expected row.
template <class Run, class Want>
void ExpectRows(Run run, Want want, float scale) {
  for (const int64_t width : Widths()) {
    Numbers numbers(static_cast<uint64_t>(width));
    FencedRows a(3, width), b(3, width);
    a.Fill(&numbers, scale);
    b.Fill(&numbers, scale);
    ForEachTarget([&](const std::string& target) {
      FencedRows y(3, width);
      for (int64_t row = 0; row < 3; ++row) {
        run(width, a.Row(row), b.Row(row), b.Row(0), y.Row(row));
        std::vector<float> wanted(static_cast<size_t>(width));
        want(width, a.Row(row), b.Row(row), b.Row(0), wanted.data());
        EXPECT_EQ(FirstDifference(y.Row(row), wanted.data(), width), "")
            << target << ", width " << width << ", row " << row;
      }
      EXPECT_TRUE(y.FenceIntact(3)) << target << ", width " << width;
    });
  }
}

TEST(RowKernels, RmsNormMatchesReference) {
  ExpectRows([](int64_t width, const float* a, const float*, const float* scale,
                float* y) { RmsNorm(a, width, scale, 1e-6f, y); },
             [](int64_t width, const float* a, const float*, const float* scale, float* y) {
               reference::RmsNormRow(a, width, scale, 1e-6f, y);
             },
             3);
}

TEST(RowKernels, GeluTimesMatchesReference) {
  ExpectRows([](int64_t width, const float* a, const float* b, const float*,
                float* y) { GeluTimes(a, b, width, y); },
             [](int64_t width, const float* a, const float* b, const float*, float* y) {
               for (int64_t i = 0; i < width; ++i) y[i] = reference::Gelu(a[i]) * b[i];
             },
             12);
}

TEST(RowKernels, SoftcapMatchesReference) {
  ExpectRows(
      [](int64_t width, const float* a, const float*, const float*, float* y) {
        std::copy_n(a, width, y);
        Softcap(30, width, y);
      },
      [](int64_t width, const float* a, const float*, const float*, float* y) {
        for (int64_t i = 0; i < width; ++i) y[i] = reference::Tanh(a[i] / 30) * 30;
      },
      100);
}

// Returns values with every exponent of float32, and special values.
std::vector<float> AllSizes() {
  std::vector<float> values = {0.0f, -0.0f, kInfinity, -kInfinity, 0.625f, -0.625f, -87.0f, 88.73f};
  Numbers numbers(9);
  for (uint32_t i = 0; i < 40000; ++i) {
    const uint32_t bits = static_cast<uint32_t>(numbers.Next() << 9 ^ numbers.Next());
    const float value = FloatOfBits(bits);
    if (value == value) values.push_back(value);
    values.push_back(100 * numbers.Value());
  }
  return values;
}

// Tanh and GELU give the same bits on every target, at every position in a vector and in the last,
// padded vector. GELU calls exp. Exp and tanh of the reference are also compared with the C
// library.
TEST(RowKernels, GeluTanhAndExpAreAccurate) {
  const std::vector<float> x = AllSizes();
  const int64_t count = static_cast<int64_t>(x.size());
  std::vector<float> want_gelu, want_tanh, got(x.size());
  double worst_exp = 0, worst_tanh = 0;
  for (const float value : x) {
    want_gelu.push_back(reference::Gelu(value));
    want_tanh.push_back(reference::Tanh(value));
    const double wide = static_cast<double>(value);
    if (value > -87 && value < 88.7f) {
      worst_exp = std::max(worst_exp, std::abs(reference::Exp(value) / std::exp(wide) - 1));
    }
    if (std::abs(wide) > 1e-30) {
      worst_tanh = std::max(worst_tanh, std::abs(want_tanh.back() / std::tanh(wide) - 1));
    }
  }
  EXPECT_LT(worst_exp, 1.3e-7);
  EXPECT_LT(worst_tanh, 2e-7);
  const std::vector<float> ones(x.size(), 1.0f);
  ForEachTarget([&](const std::string& target) {
    for (const int64_t skip : {0, 1, 5, 15}) {
      const int64_t rest = count - skip;
      std::copy(x.begin() + skip, x.end(), got.begin());
      Softcap(1, rest, got.data());
      EXPECT_EQ(FirstDifference(got.data(), want_tanh.data() + skip, rest), "") << target;
      GeluTimes(x.data() + skip, ones.data(), rest, got.data());
      EXPECT_EQ(FirstDifference(got.data(), want_gelu.data() + skip, rest), "") << target;
    }
    got[0] = std::numeric_limits<float>::quiet_NaN();
    Softcap(1, 1, got.data());
    EXPECT_TRUE(std::isnan(got[0])) << target;
  });
  EXPECT_EQ(reference::Exp(0), 1);
  EXPECT_EQ(reference::Exp(-kInfinity), 0);
}

TEST(RowKernels, GeluMatchesTanhFormula) {
  for (float x = -12; x < 12; x += 0.01f) {
    const double wide = static_cast<double>(x);
    const double want =
        0.5 * wide * (1 + std::tanh(std::sqrt(2 / M_PI) * (wide + 0.044715 * wide * wide * wide)));
    EXPECT_NEAR(reference::Gelu(x), want, 4e-7 * std::max(1.0, std::abs(want)));
  }
}

// The powers must be correctly rounded to float. The recorded values detect a change of our
// functions.
TEST(RopeTable, InverseFrequenciesAreCorrectlyRounded) {
  for (const double theta : {1.0, 1.5, 10000.0, 500000.0, 1000000.0}) {
    for (const int head_dim : {16, 48, 128, 256, 512}) {
      for (const double factor : {1.0, 8.0, 3.0}) {
        const RopeTable table({theta, factor}, head_dim);
        ASSERT_EQ(table.half(), head_dim / 2);
        for (int i = 0; i < head_dim / 2; ++i) {
          const float exponent = 2.0f * static_cast<float>(i) / static_cast<float>(head_dim);
          const auto power = static_cast<float>(
              std::pow(static_cast<long double>(theta), static_cast<long double>(exponent)));
          ASSERT_EQ(table.inverse_frequencies()[static_cast<size_t>(i)],
                    1.0f / power / static_cast<float>(factor))
              << theta << ", " << head_dim << ", " << i;
        }
      }
    }
  }
  const std::vector<float> inverse = RopeTable({1e6, 8}, 256).inverse_frequencies();
  EXPECT_EQ(inverse[0], 0.125f);
  EXPECT_EQ(inverse[1], 0x1.cb9da6p-4f);
  EXPECT_EQ(inverse[100], 0x1.58863ap-19f);
  EXPECT_EQ(inverse[127], 0x1.2b07b4p-23f);
}

// Expected values: transformers 5.23 with rope_theta 1e6, factor 4, 256 original positions and
// head_dim 16.
TEST(RopeTable, YarnMatchesTransformers) {
  RopeTable table({1e6, 4, 0, 3, 1.138629436111989f}, 16);
  const float want[] = {1.0f,
                        0.13337095081806183f,
                        0.015811389312148094f,
                        0.0014058533124625683f,
                        0.0002500000118743628f,
                        4.4456985051510856e-05f,
                        7.905693564680405e-06f,
                        1.405853367941745e-06f};
  for (size_t i = 0; i < 8; ++i) EXPECT_FLOAT_EQ(table.inverse_frequencies()[i], want[i]) << i;
  table.Extend(2);
  EXPECT_FLOAT_EQ(table.Cos(0, 1).data[7], 1.138629436111989f);
  EXPECT_FLOAT_EQ(table.Sin(1, 1).data[0], 1.138629436111989f * std::sin(1.0f));
}

TEST(RopeTable, CosinesAndSinesMatchFloatAngles) {
  RopeTable table({1e6}, 8);
  const std::vector<float>& inverse = table.inverse_frequencies();
  table.Extend(10);
  table.Extend(140000);
  const ConstRows cos = table.Cos(0, 140000), sin = table.Sin(0, 140000);
  for (int64_t position = 0; position < 140000; position += position < 3000 ? 1 : 37) {
    for (int i = 0; i < 4; ++i) {
      const double angle = static_cast<double>(static_cast<float>(position) * inverse[i]);
      ASSERT_NEAR(cos.Row(position)[i], std::cos(angle), 6.1e-8) << position;
      ASSERT_NEAR(sin.Row(position)[i], std::sin(angle), 6.1e-8) << position;
    }
  }
}

}  // namespace
}  // namespace hearth
