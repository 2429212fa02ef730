#include "worker/kernels/layer.h"

#include <gtest/gtest.h>

#include "tests/worker/kernels/kernel_kit.h"
#include "tests/worker/model/weights_kit.h"
#include "worker/kernels/reference.h"
#include "worker/kernels/rope_table.h"

namespace hearth {
namespace {

constexpr int64_t kHidden = 70, kHeads = 4, kKvHeads = 2, kDim = 16, kWide = 90, kSplit = 16;
constexpr int64_t kQkv = (kHeads + 2 * kKvHeads) * kDim;
constexpr float kEpsilon = 1e-6f;

std::vector<float> RandomScale(int64_t count, Numbers* numbers) {
  std::vector<float> scale;
  for (int64_t i = 0; i < count; ++i) scale.push_back(1 + numbers->Value() / 4);
  return scale;
}

// Weights of a layer of a small model.
struct TinyLayer {
  explicit TinyLayer(Numbers* numbers)
      : qkv(MakeWeights({kQkv, kHidden}, ElementType::kBFloat16, numbers)),
        out(MakeWeights({kHidden, kHeads * kDim}, ElementType::kBFloat16, numbers)),
        gate(MakeWeights({kWide, kHidden}, ElementType::kBFloat16, numbers)),
        up(MakeWeights({kWide, kHidden}, ElementType::kBFloat16, numbers)),
        down(MakeWeights({kHidden, kWide}, ElementType::kBFloat16, numbers)) {
    for (std::vector<float>& norm : norms) norm = RandomScale(kHidden, numbers);
    for (std::vector<float>& norm : head_norms) norm = RandomScale(kDim, numbers);
  }
  LayerWeights view() const {
    LayerWeights weights;
    weights.qkv = {&qkv, 1};
    weights.out = &out;
    weights.gate = &gate;
    weights.up = &up;
    weights.down = &down;
    weights.post_attention_norm = norms[0].data();
    weights.pre_feedforward_norm = norms[1].data();
    weights.post_feedforward_norm = norms[2].data();
    weights.heads = {kHeads, kKvHeads, kDim, head_norms[0].data(), head_norms[1].data(), kEpsilon};
    weights.attend = {kHeads, kKvHeads, kDim, kSplit, /*window=*/20};
    return weights;
  }

  PackedWeights qkv, out, gate, up, down;
  std::vector<float> norms[3], head_norms[2];
};

// The KV blocks of one sequence in one layer; values that were not written are NaN.
class Blocks {
 public:
  explicit Blocks(int64_t tokens) {
    for (int64_t at = 0; at < tokens; at += kSplit) {
      blocks_.emplace_back(2 * kKvHeads * kSplit * kDim, std::numeric_limits<float>::quiet_NaN());
    }
    for (std::vector<float>& block : blocks_) {
      pointers_.push_back(reinterpret_cast<const std::byte*>(block.data()));
    }
  }
  QkvToken Place(const RopeTable& rope, int64_t position) {
    float* keys = blocks_[static_cast<size_t>(position / kSplit)].data() + position % kSplit * kDim;
    return {rope.Cos(position, 1).data, rope.Sin(position, 1).data,
            reinterpret_cast<std::byte*>(keys),
            reinterpret_cast<std::byte*>(keys + kKvHeads * kSplit * kDim), kSplit * kDim};
  }
  const std::byte* const* pointers() const { return pointers_.data(); }

 private:
  std::vector<std::vector<float>> blocks_;
  std::vector<const std::byte*> pointers_;
};

using Row = std::vector<float>;

Row ProductOfRow(const Row& x, const PackedWeights& weights) {
  Row y(static_cast<size_t>(weights.outputs()));
  reference::ProductRow(x.data(), weights, 0, weights.outputs(), y.data());
  return y;
}
Row NormOfRow(const Row& x, const std::vector<float>& scale) {
  Row y(x.size());
  reference::RmsNormRow(x.data(), static_cast<int64_t>(x.size()), scale.data(), kEpsilon, y.data());
  return y;
}

// Computes one row through one layer with the reference kernels; writes its key and value to the
// blocks.
void ReferenceLayer(const TinyLayer& layer, const Row& next_norm, const QkvToken& token,
                    int64_t position, const std::byte* const* blocks, Row* x, Row* normed) {
  Row qkv = ProductOfRow(*normed, layer.qkv);
  for (int64_t head = 0; head < kHeads + kKvHeads; ++head) {
    float* at = qkv.data() + head * kDim;
    const std::vector<float>& scale = layer.head_norms[head < kHeads ? 0 : 1];
    reference::RmsNormRow(at, kDim, scale.data(), kEpsilon, at);
    reference::RotateRow(token.cos, token.sin, kDim / 2, at);
  }
  for (int64_t head = 0; head < 2 * kKvHeads; ++head) {
    std::copy_n(qkv.data() + (kHeads + head) * kDim, kDim,
                reinterpret_cast<float*>(token.keys) + head * token.head_stride);
  }
  Row attended(static_cast<size_t>(kHeads * kDim));
  for (int64_t head = 0; head < kHeads; ++head) {
    reference::AttendRow(layer.view().attend, blocks, head / (kHeads / kKvHeads), position,
                         qkv.data() + head * kDim, attended.data() + head * kDim);
  }
  Row more = NormOfRow(ProductOfRow(attended, layer.out), layer.norms[0]);
  for (size_t i = 0; i < x->size(); ++i) (*x)[i] += more[i];
  const Row inner = NormOfRow(*x, layer.norms[1]);
  Row gated = ProductOfRow(inner, layer.gate);
  const Row ups = ProductOfRow(inner, layer.up);
  for (size_t i = 0; i < gated.size(); ++i) gated[i] = reference::Gelu(gated[i]) * ups[i];
  more = NormOfRow(ProductOfRow(gated, layer.down), layer.norms[2]);
  for (size_t i = 0; i < x->size(); ++i) (*x)[i] += more[i];
  *normed = NormOfRow(*x, next_norm);
}

// A step with two sequences. The layers are not part of it.
struct Step {
  Step(int64_t first_rows, int64_t second_rows)
      : counts{first_rows, second_rows}, rows(first_rows + second_rows) {}
  // sequence(row): the sequence of a row; position(row): the row's position in that sequence.
  int64_t sequence(int64_t row) const { return row < counts[0] ? 0 : 1; }
  int64_t position(int64_t row) const { return row < counts[0] ? row : row - counts[0]; }

  int64_t counts[2], rows;
};

class LayerTest : public testing::Test {
 protected:
  LayerTest() : numbers_(3), layers_{TinyLayer(&numbers_), TinyLayer(&numbers_)} {
    for (std::vector<float>& norm : norms_) norm = RandomScale(kHidden, &numbers_);
    rope_ = RopeTable({10000}, kDim);
    rope_.Extend(300);
    for (int64_t i = 0; i < 300; ++i) inputs_.push_back(RandomScale(kHidden, &numbers_));
  }
  const Row& input(const Step& step, int64_t row) const {
    return inputs_[static_cast<size_t>(2 * step.position(row) + step.sequence(row)) % 300];
  }

  // Returns, for each row, x after both layers, followed by the norm of x.
  std::vector<Row> ByReference(const Step& step) {
    std::vector<Blocks> blocks;
    for (int i = 0; i < 4; ++i) blocks.emplace_back(300);
    std::vector<Row> results;
    for (int64_t row = 0; row < step.rows; ++row) {
      Row x = input(step, row), normed = NormOfRow(x, norms_[0]);
      for (size_t i = 0; i < 2; ++i) {
        Blocks& held = blocks[2 * i + static_cast<size_t>(step.sequence(row))];
        ReferenceLayer(layers_[i], norms_[1], held.Place(rope_, step.position(row)),
                       step.position(row), held.pointers(), &x, &normed);
      }
      results.push_back(x);
      results.push_back(normed);
    }
    return results;
  }

  void ExpectStep(const Step& step, const std::vector<Row>& want, ThreadPool* pool,
                  const std::string& what) {
    FencedRows x(step.rows, kHidden), normed(step.rows, kHidden), qkv(step.rows, kQkv),
        attended(step.rows, kHeads * kDim), gated(step.rows, kWide), out(step.rows, kHidden);
    const auto view = [&](FencedRows& rows) { return Rows{rows.Row(0), step.rows, rows.stride()}; };
    LayerRows rows{view(x), view(normed), view(qkv), view(attended), view(gated), view(out),
                   {},      {},           {}};
    for (int64_t row = 0; row < step.rows; ++row) {
      const Row first = NormOfRow(input(step, row), norms_[0]);
      std::copy(input(step, row).begin(), input(step, row).end(), x.Row(row));
      std::copy(first.begin(), first.end(), normed.Row(row));
    }
    std::vector<Blocks> blocks;
    for (int i = 0; i < 4; ++i) blocks.emplace_back(300);
    std::vector<std::vector<QkvToken>> tokens(2);
    std::vector<std::vector<AttendSequence>> sequences(2);
    Workspace workspace;
    KernelPhases phases;
    for (size_t i = 0; i < 2; ++i) {
      for (int64_t row = 0; row < step.rows; ++row) {
        Blocks& held = blocks[2 * i + static_cast<size_t>(step.sequence(row))];
        tokens[i].push_back(held.Place(rope_, step.position(row)));
      }
      for (size_t s = 0; s < 2; ++s) {
        if (step.counts[s] == 0) continue;
        sequences[i].push_back({blocks[2 * i + s].pointers(), 0, step.counts[s]});
      }
      rows.tokens = tokens[i];
      rows.sequences = sequences[i];
      AddQueriesKeysValues(layers_[i].view(), rows, &workspace, &phases);
      AddAttentionAndFeedForward(layers_[i].view(), norms_[1].data(), rows, &workspace, &phases);
    }
    phases.RunOn(pool);
    for (int64_t row = 0; row < step.rows; ++row) {
      const size_t at = 2 * static_cast<size_t>(row);
      ASSERT_EQ(FirstDifference(x.Row(row), want[at].data(), kHidden), "") << what << row;
      ASSERT_EQ(FirstDifference(normed.Row(row), want[at + 1].data(), kHidden), "") << what << row;
    }
    for (const FencedRows* fenced : {&x, &normed, &qkv, &attended, &gated, &out}) {
      ASSERT_TRUE(fenced->FenceIntact(step.rows)) << what;
    }
  }

  Numbers numbers_;
  TinyLayer layers_[2];
  std::vector<float> norms_[2];
  RopeTable rope_;
  std::vector<Row> inputs_;
};

TEST_F(LayerTest, StepMatchesReferenceRows) {
  for (const Step& step : {Step(1, 0), Step(1, 1), Step(3, 5), Step(9, 1), Step(40, 25)}) {
    const std::vector<Row> want = ByReference(step);
    for (const int threads : {1, 2, 3, 8}) {
      ThreadPool pool(threads);
      ForEachTarget([&](const std::string& target) {
        ExpectStep(step, want, &pool, target + ", " + std::to_string(threads) + " threads, row ");
      });
    }
  }
}

TEST_F(LayerTest, LongStepMatchesReferenceRows) {
  const Step step(257, 3);
  const std::vector<Row> want = ByReference(step);
  ThreadPool pool(3);
  ForEachTarget([&](const std::string& target) { ExpectStep(step, want, &pool, target); });
}

}  // namespace
}  // namespace hearth
