// Tests of quantized planes: quantization and dequantization, and attention over them on every
// target.
#include "worker/kernels/quantized/quantized_plane.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/worker/kernels/kernel_kit.h"
#include "worker/kernels/reference.h"

namespace hearth {
namespace {

QuantizedPlane PlaneOf(uint32_t bits, uint32_t group, int axis, int64_t tokens, int64_t head_dim) {
  QuantizedPlane plane;
  plane.form.bits = bits;
  plane.form.group = group;
  plane.axis = axis;
  plane.tokens = tokens;
  plane.head_dim = head_dim;
  return plane;
}

std::vector<float> Values(int64_t count, uint64_t seed, float scale = 3) {
  Numbers numbers(seed);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(scale * numbers.Value());
  return values;
}

std::vector<float> QuantizedAndBack(const QuantizedPlane& plane, const std::vector<float>& values) {
  std::vector<std::byte> bytes(plane.bytes());
  QuantizePlane(plane, values.data(), bytes.data());
  std::vector<float> back(values.size());
  reference::DequantizePlane(plane, bytes.data(), back.data());
  return back;
}

TEST(QuantizedPlane, RoundTripStaysWithinHalfStep) {
  for (const uint32_t bits : {8u, 4u, 2u}) {
    for (const int axis : {0, -1}) {
      const QuantizedPlane plane = PlaneOf(bits, 16, axis, 32, 48);
      const std::vector<float> values = Values(32 * 48, bits);
      const std::vector<float> back = QuantizedAndBack(plane, values);
      // The range of a group is below 6; its step and least value are rounded outwards by less than
      // 1 %.
      const float half = 6.12f / static_cast<float>((1u << bits) - 1) / 2;
      double error = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(back[i], values[i], half) << bits << ", axis " << axis << ": " << i;
        error += std::abs(static_cast<double>(back[i] - values[i]));
      }
      EXPECT_GT(error, 0) << "something was quantized";
    }
  }
}

TEST(QuantizedPlane, GroupsFollowConfiguredAxis) {
  // One large value must change only the values of its own group.
  for (const int axis : {0, -1}) {
    const QuantizedPlane plane = PlaneOf(2, 16, axis, 32, 32);
    std::vector<float> values = Values(32 * 32, 5);
    const std::vector<float> before = QuantizedAndBack(plane, values);
    values[5 * 32 + 7] = 1e6f;
    const std::vector<float> after = QuantizedAndBack(plane, values);
    for (int64_t token = 0; token < 32; ++token) {
      for (int64_t column = 0; column < 32; ++column) {
        const bool same_group = axis == 0 ? token == 5 && column < 16 : column == 7 && token < 16;
        const size_t i = static_cast<size_t>(token * 32 + column);
        if (same_group) continue;
        ASSERT_EQ(after[i], before[i]) << axis << ": " << token << ", " << column;
      }
    }
    EXPECT_NE(after, before);
  }
}

TEST(QuantizedPlane, EqualValuesRoundTripExactly) {
  const QuantizedPlane plane = PlaneOf(4, 16, 0, 16, 16);
  for (const float value : {0.0f, 1.5f, -3.25f}) {
    const std::vector<float> values(256, value);
    EXPECT_EQ(QuantizedAndBack(plane, values), values) << value;
  }
}

TEST(QuantizedPlane, InfiniteValueBreaksOnlyItsGroup) {
  const QuantizedPlane plane = PlaneOf(8, 16, 0, 16, 32);
  const std::vector<float> values = Values(16 * 32, 9);
  const std::vector<float> before = QuantizedAndBack(plane, values);
  for (const float spoilt : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::vector<float> changed = values;
    changed[40] = spoilt;
    const std::vector<float> back = QuantizedAndBack(plane, changed);
    for (size_t i = 0; i < values.size(); ++i) {
      if (i / 16 == 40 / 16) {
        EXPECT_TRUE(std::isnan(back[i])) << i;
      } else {
        EXPECT_EQ(back[i], before[i]) << i;
      }
    }
  }
}

// The keys and values of a sequence; each complete block also has a quantized (sealed) copy.
struct SealedSequence {
  SealedSequence(const AttendShape& shape, const KvQuantization& form, int64_t positions)
      : shape(shape), form(form) {
    const int64_t values = shape.split * shape.head_dim, planes = 2 * shape.kv_heads;
    for (int64_t split = 0; split * shape.split < positions; ++split) {
      blocks.push_back(Values(planes * values, static_cast<uint64_t>(split) + 3, 1));
      sealed.emplace_back();
      if ((split + 1) * shape.split > positions) continue;
      for (int64_t number = 0; number < planes; ++number) {
        QuantizedPlane plane{form, number < shape.kv_heads ? form.axis_key : form.axis_value,
                             shape.split, shape.head_dim};
        sealed.back().resize(static_cast<size_t>(planes) * plane.bytes());
        QuantizePlane(plane, blocks.back().data() + number * values,
                      sealed.back().data() + static_cast<size_t>(number) * plane.bytes());
      }
    }
  }

  // Returns rows [begin, begin + rows). Blocks before the first row's block exist only in sealed
  // form.
  AttendSequence Rows(int64_t begin, int64_t rows) {
    block_pointers.clear();
    sealed_pointers.clear();
    for (size_t split = 0; split < blocks.size(); ++split) {
      const bool gone = static_cast<int64_t>(split) < begin / shape.split;
      const auto* plain = reinterpret_cast<const std::byte*>(blocks[split].data());
      block_pointers.push_back(gone ? nullptr : plain);
      sealed_pointers.push_back(sealed[split].empty() ? nullptr : sealed[split].data());
    }
    return {block_pointers.data(), begin, rows, sealed_pointers.data(), form};
  }

  const AttendShape shape;
  const KvQuantization form;
  std::vector<std::vector<float>> blocks;
  std::vector<std::vector<std::byte>> sealed;
  std::vector<const std::byte*> block_pointers, sealed_pointers;
};

AttendShape SealedShape(int64_t head_dim, int64_t window) {
  AttendShape shape;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = head_dim;
  shape.split = 16;
  shape.window = window;
  return shape;
}

void ExpectAttendsSealed(const AttendShape& shape, const KvQuantization& form) {
  constexpr int64_t kRows = 75;
  const int64_t columns = shape.heads * shape.head_dim;
  SealedSequence sequence(shape, form, kRows);
  const std::vector<float> queries = Values(kRows * columns, 77, 1);
  std::vector<float> want(queries.size());
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      const int64_t at = row * columns + head * shape.head_dim;
      reference::AttendRow(shape, sequence.Rows(row, 1), head / shape.sharers(), row,
                           queries.data() + at, want.data() + at);
    }
  }
  ForEachTarget([&](const std::string& target) {
    for (const int64_t step : {int64_t{1}, int64_t{7}, kRows}) {
      std::vector<float> out(queries.size());
      for (int64_t begin = 0; begin < kRows; begin += step) {
        const int64_t rows = std::min(step, kRows - begin);
        Workspace workspace;
        AddAndRun(InThisThread, [&](KernelPhases* phases) {
          AddAttend(shape, {sequence.Rows(begin, rows)},
                    {queries.data() + begin * columns, rows, columns},
                    {out.data() + begin * columns, rows, columns}, &workspace, phases);
        });
      }
      EXPECT_EQ(FirstDifference(out.data(), want.data(), kRows * columns), "")
          << target << ", steps of " << step << ", " << KvQuantizationText(form);
    }
  });
}

TEST(QuantizedPlane, AttentionOverQuantizedBlocksMatchesReference) {
  for (const uint32_t bits : {8u, 4u, 2u}) {
    for (const int axis : {0, -1}) {
      KvQuantization form;
      form.bits = bits;
      form.group = 16;
      form.axis_key = axis;
      form.axis_value = -1 - axis;
      ExpectAttendsSealed(SealedShape(64, 0), form);
      ExpectAttendsSealed(SealedShape(16, 24), form);
      AttendShape fused = SealedShape(16, 24);
      fused.fuses = true;
      ExpectAttendsSealed(fused, form);
      form.group = 8;  // smaller than a vector
      ExpectAttendsSealed(SealedShape(32, 0), form);
    }
  }
}

// Attention over sealed blocks gives the same result as attention over their dequantized values.
TEST(QuantizedPlane, QuantizedAttentionEqualsDequantizedAttention) {
  const AttendShape shape = SealedShape(32, 0);
  KvQuantization form;
  form.bits = 4;
  form.group = 16;
  SealedSequence sequence(shape, form, 40);
  const std::vector<float> query = Values(shape.heads * shape.head_dim, 5, 1);
  std::vector<float> sealed(query.size()), plain(query.size()), opened(query.size());
  const auto attend = [&](const AttendSequence& rows, std::vector<float>* out) {
    Workspace workspace;
    const int64_t columns = shape.heads * shape.head_dim;
    AddAndRun(InThisThread, [&](KernelPhases* phases) {
      AddAttend(shape, {rows}, {query.data(), 1, columns}, {out->data(), 1, columns}, &workspace,
                phases);
    });
  };
  attend(sequence.Rows(39, 1), &sealed);
  AttendSequence as_they_are = sequence.Rows(0, 40);
  as_they_are.begin = 39;
  as_they_are.rows = 1;
  as_they_are.sealed = nullptr;
  attend(as_they_are, &plain);
  const int64_t values = shape.split * shape.head_dim;
  for (size_t split = 0; split < 2; ++split) {
    for (int64_t number = 0; number < 2 * shape.kv_heads; ++number) {
      const QuantizedPlane plane{form, 0, shape.split, shape.head_dim};
      reference::DequantizePlane(
          plane, sequence.sealed[split].data() + static_cast<size_t>(number) * plane.bytes(),
          sequence.blocks[split].data() + number * values);
    }
  }
  attend(as_they_are, &opened);
  EXPECT_EQ(sealed, opened);
  EXPECT_NE(sealed, plain);
}

}  // namespace
}  // namespace hearth
