#include "worker/kernels/attend.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/worker/kernels/kernel_kit.h"
#include "worker/kernels/attend_plan.h"
#include "worker/kernels/functions.h"
#include "worker/kernels/fused_dot.h"
#include "worker/kernels/reference.h"

namespace hearth {
namespace {

// The KV blocks of one sequence. Values that were not written are NaN; an unused block is null.
class Arena {
 public:
  Arena(const AttendShape& shape, int64_t positions, Numbers* numbers) : shape_(shape) {
    const size_t element = ElementBytes(shape.kv_type);
    block_elements_ = 2 * shape.kv_heads * shape.split * shape.head_dim;
    for (int64_t split = 0; split * shape.split < positions; ++split) {
      bytes_.emplace_back(static_cast<size_t>(block_elements_) * element, std::byte{0xff});
      for (int64_t i = 0; i < block_elements_; ++i) {
        const int64_t token = i / shape.head_dim % shape.split;
        const uint32_t bits = BitsOfValue(numbers);
        if (split * shape.split + token < positions) Set(split, i, bits);
      }
    }
  }

  // Overwrites the keys and values outside [begin, end) with NaN, or removes their blocks.
  void KeepOnly(int64_t begin, int64_t end) {
    for (size_t split = 0; split < bytes_.size(); ++split) {
      const int64_t base = static_cast<int64_t>(split) * shape_.split;
      if (base + shape_.split <= begin || base >= end) {
        bytes_[split].clear();
        continue;
      }
      for (int64_t i = 0; i < block_elements_; ++i) {
        const int64_t position = base + i / shape_.head_dim % shape_.split;
        if (position < begin || position >= end) Set(static_cast<int64_t>(split), i, 0xffffffff);
      }
    }
  }

  // Overwrites the first element of a position's key in each head. REQUIRES: kv_type is kFloat32.
  void SpoilKeys(int64_t position, float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const int64_t token = position % shape_.split;
    for (int64_t head = 0; head < shape_.kv_heads; ++head) {
      Set(position / shape_.split, (head * shape_.split + token) * shape_.head_dim, bits);
    }
  }

  const std::byte* const* blocks() {
    pointers_.clear();
    for (const std::vector<std::byte>& block : bytes_) {
      pointers_.push_back(block.empty() ? nullptr : block.data());
    }
    return pointers_.data();
  }

 private:
  static uint32_t BitsOfValue(Numbers* numbers) {
    const float value = numbers->Value();
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
  }
  void Set(int64_t split, int64_t element, uint32_t bits) {
    const size_t size = ElementBytes(shape_.kv_type);
    std::byte* at = bytes_[static_cast<size_t>(split)].data() + static_cast<size_t>(element) * size;
    const uint16_t half = static_cast<uint16_t>(bits >> 16);
    if (size == 4) {
      std::memcpy(at, &bits, 4);
    } else {
      std::memcpy(at, &half, 2);
    }
  }

  AttendShape shape_;
  int64_t block_elements_;
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<const std::byte*> pointers_;
};

int64_t FirstKey(const AttendShape& shape, int64_t position) {
  return shape.window > 0 ? std::max<int64_t>(0, position - shape.window + 1) : 0;
}

AttendShape MakeShape(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t split,
                      int64_t window, ElementType type = ElementType::kFloat32) {
  AttendShape shape;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.split = split;
  shape.window = window;
  shape.kv_type = type;
  return shape;
}

// A sequence with queries at positions [begin, begin + rows), and the results of the reference.
struct AttendCase {
  AttendCase(const AttendShape& the_shape, int64_t the_begin, int64_t the_rows, uint64_t seed)
      : shape(the_shape),
        begin(the_begin),
        rows(the_rows),
        numbers(seed),
        columns(shape.heads * shape.head_dim),
        arena(shape, begin + rows, &numbers),
        queries(rows, columns),
        want(rows, columns) {
    queries.Fill(&numbers, 4 / std::sqrt(static_cast<float>(shape.head_dim)));
    ComputeWant();
  }

  void ComputeWant() {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t head = 0; head < shape.heads; ++head) {
        const int64_t column = head * shape.head_dim;
        reference::AttendRow(shape, arena.blocks(), head / shape.sharers(), begin + row,
                             queries.Row(row) + column, want.Row(row) + column);
      }
    }
  }

  const AttendShape shape;
  const int64_t begin, rows;
  Numbers numbers;
  const int64_t columns;
  Arena arena;
  FencedRows queries, want;
};

// Computes rows [first, first + count) of a case in one call and compares them with the reference.
// Keys to which no row attends are NaN.
void ExpectAttended(const AttendCase& test, int64_t first, int64_t count, ParallelFor parallel,
                    const std::string& what) {
  Arena arena = test.arena;
  const int64_t position = test.begin + first;
  arena.KeepOnly(FirstKey(test.shape, position), position + count);
  FencedRows out(count, test.columns, 3);
  Workspace workspace;
  AddAndRun(parallel, [&](KernelPhases* phases) {
    AddAttend(test.shape, {{arena.blocks(), position, count}},
              {test.queries.Row(first), count, test.queries.stride()},
              {out.Row(0), count, out.stride()}, &workspace, phases);
  });
  for (int64_t row = 0; row < count; ++row) {
    const std::string difference =
        FirstDifference(out.Row(row), test.want.Row(first + row), test.columns);
    ASSERT_EQ(difference, "") << what << ", row " << row << " of " << count << " at " << position;
  }
  ASSERT_TRUE(out.FenceIntact(count)) << what;
}

TEST(Attend, MatchesReferenceAtEveryRowCount) {
  for (const int64_t window : {0, 20, 100}) {
    const AttendCase test(MakeShape(2, 1, 32, 32, window), 37, 257, 1);
    ForEachTarget([&](const std::string& target) {
      for (const int64_t rows : RowCounts()) ExpectAttended(test, 0, rows, InThisThread, target);
    });
  }
}

TEST(Attend, GemmaHeadShapesMatchReference) {
  for (const AttendShape& shape :
       {MakeShape(4, 1, 256, 128, 100), MakeShape(8, 4, 256, 128, 0), MakeShape(16, 8, 256, 64, 33),
        MakeShape(32, 16, 128, 128, 0), MakeShape(16, 1, 16, 16, 5), MakeShape(3, 3, 48, 32, 0)}) {
    const AttendCase test(shape, 120, 20, 2);
    ForEachTarget([&](const std::string& target) {
      for (const int64_t rows : {1, 4, 20}) ExpectAttended(test, 0, rows, InThisThread, target);
    });
  }
}

TEST(Attend, BFloat16KeysMatchReference) {
  AttendShape shape = MakeShape(4, 2, 64, 32, 40, ElementType::kBFloat16);
  shape.softcap = 2.5f;
  const AttendCase test(shape, 90, 40, 3);
  ForEachTarget([&](const std::string& target) {
    for (const int64_t rows : {1, 3, 40}) ExpectAttended(test, 0, rows, InThisThread, target);
  });
}

AttendShape Fused(AttendShape shape, float softcap = 0) {
  shape.kv_type = ElementType::kBFloat16;
  shape.fuses = true;
  shape.softcap = softcap;
  return shape;
}

// Values outside a row's range are finite in the reference and NaN in the other computation.
TEST(Attend, ChainsOfFusedDotMatchReference) {
  for (const AttendShape& shape :
       {Fused(MakeShape(4, 1, 256, 128, 100)), Fused(MakeShape(3, 3, 64, 32, 0), 2.5f),
        Fused(MakeShape(16, 1, 16, 16, 5)), Fused(MakeShape(10, 2, 48, 16, 33))}) {
    const AttendCase test(shape, 120, 20, 2);
    ForEachTarget([&](const std::string& target) {
      for (const int64_t rows : {1, 4, 20}) ExpectAttended(test, 0, rows, InThisThread, target);
    });
  }
}

TEST(Attend, ChainsOfFusedDotGiveSameBitsInEveryStep) {
  for (const int64_t window : {0, 1, 19}) {
    const AttendCase test(Fused(MakeShape(2, 1, 32, 16, window)), 0, 70, 4);
    for (const int64_t step : {1, 7, 70}) {
      for (int64_t first = 0; first < 70; first += step) {
        ExpectAttended(test, first, std::min(step, 70 - first), InThisThread, "step");
      }
    }
  }
}

// fused_attend.h relies on this: a product with the weight +0 adds nothing to a sum.
TEST(FusedDot, ZeroWeightsChangeNoBit) {
  Numbers numbers(3);
  for (int i = 0; i < 20000; ++i) {
    uint16_t weights[kStepInputs], values[kStepInputs], others[kStepInputs],
        zeros[kStepInputs] = {};
    for (int k = 0; k < kStepInputs; ++k) {
      weights[k] = numbers.Next() % 2 == 0 ? 0 : static_cast<uint16_t>(numbers.Next() % 0x3f81);
      values[k] = static_cast<uint16_t>(numbers.Next() % 0x7f80 | numbers.Next() % 2 << 15);
      const auto other = static_cast<uint16_t>(numbers.Next() % 0x7f80);
      others[k] = weights[k] == 0 ? other : values[k];
    }
    float sum = FloatOfBits(static_cast<uint32_t>(numbers.Next() << 1 ^ numbers.Next()));
    if (!std::isfinite(sum) || BitsOfFloat(sum) == 0x80000000) sum = 0;
    EXPECT_EQ(BitsOfFloat(FusedDot(weights, values, sum)),
              BitsOfFloat(FusedDot(weights, others, sum)));
    EXPECT_EQ(BitsOfFloat(FusedDot(zeros, values, sum)), BitsOfFloat(sum));
    EXPECT_NE(BitsOfFloat(FusedDot(weights, values, sum)), 0x80000000);
  }
}

// A row has the same bits in a prefill step of any size and in decoding, at each offset in a block.
TEST(Attend, PrefillAndDecodeGiveSameBits) {
  for (const int64_t window : {0, 1, 16, 19, 40}) {
    const AttendCase test(MakeShape(2, 1, 32, 16, window), 0, 70, 4);
    ForEachTarget([&](const std::string& target) {
      for (const int64_t step : {1, 7, 16, 70}) {
        for (int64_t first = 0; first < 70; first += step) {
          ExpectAttended(test, first, std::min(step, 70 - first), InThisThread, target);
        }
      }
    });
  }
}

TEST(Attend, AllThreadCountsGiveSameBits) {
  const AttendCase test(MakeShape(4, 1, 64, 16, 0), 180, 100, 5);
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    const auto parallel = [&](int64_t parts, KernelPart body) {
      pool.Run(parts, [&](int64_t part, int) { body(part); });
    };
    ForEachTarget([&](const std::string& target) {
      for (const int64_t rows : {1, 3, 100}) ExpectAttended(test, 0, rows, parallel, target);
    });
  }
}

// A NaN or an infinity in a key gives the same result as in the reference, even if it is the only
// key of a split to which the row attends. The changed key is before, at or after the first row of
// a tile.
TEST(Attend, NanAndInfinityMatchReference) {
  for (const float value : {std::nanf(""), kInfinity}) {
    for (const float softcap : {0.0f, 3.0f}) {
      for (const int64_t spoilt : {0, 64, 75, 79}) {
        AttendShape shape = MakeShape(4, 2, 32, 16, 24);
        shape.softcap = softcap;
        AttendCase test(shape, 0, 110, 8);
        test.arena.SpoilKeys(spoilt, value);
        test.ComputeWant();
        ForEachTarget([&](const std::string& target) {
          const std::string what = target + ", key " + std::to_string(spoilt);
          for (int64_t first = spoilt; first < spoilt + 26; ++first) {
            ExpectAttended(test, first, 1, InThisThread, what);
          }
          ExpectAttended(test, 0, 110, InThisThread, what);
        });
      }
    }
  }
}

// One call has rows of several requests, some in prefill and some in decoding.
TEST(Attend, RowIgnoresOtherSequences) {
  const AttendShape shape = MakeShape(4, 2, 32, 16, 50);
  std::vector<AttendCase> cases;
  const std::vector<int64_t> begins = {0, 77, 31, 200, 5}, rows = {9, 1, 1, 30, 1};
  std::vector<AttendSequence> sequences;
  int64_t all = 0;
  cases.reserve(begins.size());
  for (size_t i = 0; i < begins.size(); ++i) {
    cases.emplace_back(shape, begins[i], rows[i], 10 + i);
    sequences.push_back({cases[i].arena.blocks(), begins[i], rows[i]});
    all += rows[i];
  }
  const int64_t columns = shape.heads * shape.head_dim;
  FencedRows queries(all, columns), want(all, columns);
  int64_t at = 0;
  for (const AttendCase& one : cases) {
    for (int64_t row = 0; row < one.rows; ++row, ++at) {
      std::copy_n(one.queries.Row(row), columns, queries.Row(at));
      std::copy_n(one.want.Row(row), columns, want.Row(at));
    }
  }
  ForEachTarget([&](const std::string& target) {
    FencedRows out(all, columns);
    Workspace workspace;
    AddAndRun(InThisThread, [&](KernelPhases* phases) {
      AddAttend(shape, sequences, {queries.Row(0), all, queries.stride()},
                {out.Row(0), all, out.stride()}, &workspace, phases);
    });
    for (int64_t row = 0; row < all; ++row) {
      EXPECT_EQ(FirstDifference(out.Row(row), want.Row(row), columns), "") << target << row;
    }
  });
}

TEST(Attend, RunsWithoutVectorInstructions) {
  const AttendCase test(MakeShape(4, 2, 16, 16, 9), 20, 5, 6);
  ForceTarget(KernelTarget::kPlain);
  ExpectAttended(test, 0, 5, InThisThread, "plain");
  ForceTarget(UsableTargets().back());
}

// Compares the reference with softmax attention in double precision, which is computed without
// splits.
TEST(Attend, ReferenceMatchesDoublePrecisionSoftmax) {
  AttendShape shape = MakeShape(1, 1, 32, 16, 45);
  shape.softcap = 3;
  AttendCase test(shape, 100, 1, 7);
  const auto element = [&](int64_t position, int64_t half, int64_t d) {
    const float* block =
        reinterpret_cast<const float*>(test.arena.blocks()[position / shape.split]);
    return static_cast<double>(
        block[(half * shape.split + position % shape.split) * shape.head_dim + d]);
  };
  std::vector<double> sums(32, 0.0);
  double total = 0;
  for (int64_t key = 100 - 44; key <= 100; ++key) {
    double score = 0;
    for (int64_t d = 0; d < 32; ++d) score += test.queries.Row(0)[d] * element(key, 0, d);
    const double weight = std::exp(3 * std::tanh(score / 3));
    total += weight;
    for (int64_t d = 0; d < 32; ++d) sums[static_cast<size_t>(d)] += weight * element(key, 1, d);
  }
  for (size_t d = 0; d < 32; ++d) EXPECT_NEAR(test.want.Row(0)[d], sums[d] / total, 1e-6);
}

}  // namespace
}  // namespace hearth
