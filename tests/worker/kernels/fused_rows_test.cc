#include <gtest/gtest.h>

#include "tests/worker/kernels/kernel_kit.h"
#include "worker/kernels/reference.h"
#include "worker/kernels/rope_table.h"
#include "worker/kernels/row_kernels.h"

namespace hearth {
namespace {

constexpr float kEpsilon = 1e-6f;

// The expected results of AddNormAndNorm for one row, computed by the reference kernels.
struct AddedRow {
  AddedRow(const float* y, const float* x, const float* y_scale, const float* x_scale,
           int64_t columns)
      : sum(x, x + columns), normed(sum.size()) {
    reference::RmsNormRow(y, columns, y_scale, kEpsilon, normed.data());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + normed[i];
    reference::RmsNormRow(sum.data(), columns, x_scale, kEpsilon, normed.data());
  }
  std::vector<float> sum, normed;
};

void ExpectAddedRows(const FencedRows& y, const FencedRows& x, const FencedRows& scales,
                     int64_t rows, int64_t columns) {
  std::vector<AddedRow> want;
  for (int64_t row = 0; row < rows; ++row) {
    want.emplace_back(y.Row(row), x.Row(row), scales.Row(0), scales.Row(1), columns);
  }
  ForEachTarget([&](const std::string& target) {
    FencedRows sum = x, normed(rows, columns);
    for (int64_t row = 0; row < rows; ++row) {
      AddNormAndNorm(y.Row(row), columns, scales.Row(0), scales.Row(1), kEpsilon, sum.Row(row),
                     normed.Row(row));
      const AddedRow& wanted = want[static_cast<size_t>(row)];
      ASSERT_EQ(FirstDifference(sum.Row(row), wanted.sum.data(), columns), "")
          << target << ", " << columns << " columns, row " << row;
      ASSERT_EQ(FirstDifference(normed.Row(row), wanted.normed.data(), columns), "")
          << target << ", " << columns << " columns, row " << row;
    }
    ASSERT_TRUE(sum.FenceIntact(rows)) << target << ", " << columns;
    ASSERT_TRUE(normed.FenceIntact(rows)) << target << ", " << columns;
  });
}

// Tests every number of columns up to 33 (every tail of a vector), and the hidden size of each
// Gemma 3.
TEST(FusedRows, ResidualAddWithNormsMatchesReference) {
  std::vector<int64_t> widths = {640, 1152, 2560, 3840};
  for (int64_t width = 1; width <= 33; ++width) widths.push_back(width);
  for (const int64_t columns : widths) {
    Numbers numbers(static_cast<uint64_t>(columns));
    FencedRows y(3, columns), x(3, columns), scales(2, columns);
    y.Fill(&numbers, 3);
    x.Fill(&numbers, 50);
    scales.Fill(&numbers);
    ExpectAddedRows(y, x, scales, 3, columns);
  }
  Numbers numbers(1);
  FencedRows y(257, 40), x(257, 40), scales(2, 40);
  y.Fill(&numbers);
  x.Fill(&numbers);
  scales.Fill(&numbers);
  ExpectAddedRows(y, x, scales, 257, 40);
}

// Rows whose norm is infinite, with a last vector that is padded: the padding must not change the
// result.
TEST(FusedRows, ResidualAddWithNormsHandlesInfinity) {
  FencedRows y(3, 19), x(3, 19), scales(2, 19);
  Numbers numbers(2);
  y.Fill(&numbers);
  x.Fill(&numbers);
  scales.Fill(&numbers);
  y.Row(1)[18] = std::numeric_limits<float>::infinity();
  x.Row(2)[3] = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < 19; ++i) y.Row(0)[i] = 0;
  ExpectAddedRows(y, x, scales, 3, 19);
}

struct HeadShape {
  int64_t heads, kv_heads, head_dim;
};

// Tokens of a KV block [K,V][kv_head][token][head_dim]; values that were not written are NaN.
constexpr int64_t kBlockTokens = 4;

void ExpectAppended(const HeadShape& heads, int64_t position) {
  const int64_t dim = heads.head_dim, columns = (heads.heads + 2 * heads.kv_heads) * dim;
  Numbers numbers(static_cast<uint64_t>(dim + position));
  FencedRows row(1, columns), scales(2, dim);
  row.Fill(&numbers, 2);
  scales.Fill(&numbers);
  RopeTable rope({10000}, static_cast<int>(dim));
  rope.Extend(position + 1);
  const float *cos = rope.Cos(position, 1).data, *sin = rope.Sin(position, 1).data;
  // Expected results by the reference kernels: every head of queries and keys, then the values.
  std::vector<float> want(row.Row(0), row.Row(0) + columns);
  for (int64_t head = 0; head < heads.heads + heads.kv_heads; ++head) {
    float* at = want.data() + head * dim;
    reference::RmsNormRow(at, dim, scales.Row(head < heads.heads ? 0 : 1), kEpsilon, at);
    reference::RotateRow(cos, sin, dim / 2, at);
  }
  const int64_t token = position % kBlockTokens;
  ForEachTarget([&](const std::string& target) {
    FencedRows got = row, block(2 * heads.kv_heads * kBlockTokens, dim, 0);
    const int64_t head_stride = kBlockTokens * dim;
    float* keys = block.Row(token);
    NormRotateAppend(
        {heads.heads, heads.kv_heads, dim, scales.Row(0), scales.Row(1), kEpsilon},
        {cos, sin, reinterpret_cast<std::byte*>(keys),
         reinterpret_cast<std::byte*>(keys + heads.kv_heads * head_stride), head_stride},
        got.Row(0));
    const std::string what = target + ", head_dim " + std::to_string(dim);
    EXPECT_EQ(FirstDifference(got.Row(0), want.data(), heads.heads * dim), "") << what;
    for (int64_t head = 0; head < 2 * heads.kv_heads; ++head) {
      const float* wanted = want.data() + (heads.heads + head) * dim;
      float* at = block.Row(head * kBlockTokens + token);
      EXPECT_EQ(FirstDifference(at, wanted, dim), "") << what << ", head " << head;
      std::fill_n(at, dim, std::numeric_limits<float>::quiet_NaN());
    }
    EXPECT_TRUE(block.FenceIntact(0)) << what;  // only the token's keys and values were written
    EXPECT_TRUE(got.FenceIntact(1)) << what;
  });
}

// Keys and values in bfloat16 must equal the rounded float32 results; a NaN must give a NaN.
void ExpectAppendedNarrow(const HeadShape& heads, int64_t position) {
  const int64_t dim = heads.head_dim, columns = (heads.heads + 2 * heads.kv_heads) * dim;
  Numbers numbers(static_cast<uint64_t>(dim + position));
  FencedRows row(1, columns), scales(2, dim);
  row.Fill(&numbers, 2);
  scales.Fill(&numbers);
  float* values = row.Row(0) + (heads.heads + heads.kv_heads) * dim;
  values[0] = std::numeric_limits<float>::quiet_NaN();
  values[1] = std::numeric_limits<float>::infinity();
  RopeTable rope({10000}, static_cast<int>(dim));
  rope.Extend(position + 1);
  const float *cos = rope.Cos(position, 1).data, *sin = rope.Sin(position, 1).data;
  const int64_t all = heads.kv_heads * dim;
  ForEachTarget([&](const std::string& target) {
    QkvShape shape{heads.heads, heads.kv_heads, dim, scales.Row(0), scales.Row(1), kEpsilon};
    FencedRows wide_row = row;
    std::vector<float> wide(static_cast<size_t>(2 * all));
    std::vector<BFloat16> narrow(static_cast<size_t>(2 * all) + 1, BFloat16{0x7777});
    auto* const at = reinterpret_cast<std::byte*>(wide.data());
    NormRotateAppend(shape, {cos, sin, at, at + all * 4, dim}, wide_row.Row(0));
    shape.kv_type = ElementType::kBFloat16;
    auto* const narrow_at = reinterpret_cast<std::byte*>(narrow.data());
    for (const bool are_finite : {false, true}) {
      shape.values_are_finite = are_finite;
      FencedRows narrow_row = row;
      NormRotateAppend(shape, {cos, sin, narrow_at, narrow_at + all * 2, dim}, narrow_row.Row(0));
      for (size_t i = 0; i < wide.size(); ++i) {
        const uint16_t bits = NarrowOne(wide[i]).bits;
        const bool is_changed = are_finite && i >= static_cast<size_t>(all);
        EXPECT_EQ(narrow[i].bits, is_changed ? exact::FiniteBf16(bits) : bits) << target << wide[i];
      }
    }
    EXPECT_EQ(narrow.back().bits, 0x7777) << target;
  });
}

TEST(FusedRows, KvAppendRoundsToBFloat16) {
  for (const HeadShape& heads : {HeadShape{4, 1, 256}, {3, 3, 2}, {5, 5, 38}}) {
    for (const int64_t position : {0, 1000}) ExpectAppendedNarrow(heads, position);
  }
}

TEST(FusedRows, FiniteBf16ReplacesInfinityAndNan) {
  for (const int bits : {0x0000, 0x8000, 0x0001, 0x3f80, 0x7f7f, 0xff7f}) {
    EXPECT_EQ(exact::FiniteBf16(static_cast<uint16_t>(bits)), bits);
  }
  EXPECT_EQ(exact::FiniteBf16(0x7f80), 0x7f7f);
  EXPECT_EQ(exact::FiniteBf16(0xff80), 0xff7f);
  // The sign of a NaN differs between processors.
  for (const uint16_t bits : {0x7f81, 0xff81, 0x7fff}) EXPECT_EQ(exact::FiniteBf16(bits), 0x7f7f);
}

TEST(FusedRows, BFloat16RoundsToNearestEven) {
  EXPECT_EQ(NarrowOne(1.0f).bits, 0x3f80);
  // half way between two numbers: to even
  EXPECT_EQ(NarrowOne(FloatOfBits(0x3f808000)).bits, 0x3f80);
  EXPECT_EQ(NarrowOne(FloatOfBits(0x3f818000)).bits, 0x3f82);
  EXPECT_EQ(NarrowOne(FloatOfBits(0x3f808001)).bits, 0x3f81);
  // the largest float32 rounds to infinity
  EXPECT_EQ(NarrowOne(FloatOfBits(0x7f7fffff)).bits, 0x7f80);
  EXPECT_EQ(NarrowOne(FloatOfBits(0x00008000)).bits, 0x0000);  // subnormal
  EXPECT_EQ(NarrowOne(FloatOfBits(0x80018000)).bits, 0x8002);
  EXPECT_GT(NarrowOne(FloatOfBits(0x7f800001)).bits & 0x7f, 0);  // a NaN
}

TEST(FusedRows, NormRopeAndAppendMatchReference) {
  for (const HeadShape& heads :
       {HeadShape{4, 1, 256}, {8, 4, 256}, {16, 8, 256}, {3, 3, 2}, {2, 1, 16}, {5, 5, 38}}) {
    for (const int64_t position : {0, 1, 6, 1000}) ExpectAppended(heads, position);
  }
}

}  // namespace
}  // namespace hearth
