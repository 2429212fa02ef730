// MadeUpLayer: one layer of Gemma 3 with real shapes, computed by the kernels. Weights, keys and
// values are random numbers from a seed. For tests of bits, and for benchmarks that cannot hold a
// whole model.
//
// Thread safety: none. Owns all its memory.
#ifndef HEARTH_TESTS_SUPPORT_MADE_UP_LAYER_H_
#define HEARTH_TESTS_SUPPORT_MADE_UP_LAYER_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "worker/kernels/base/kernel_memory.h"
#include "worker/kernels/layer.h"
#include "worker/kernels/rope_table.h"
#include "worker/model/thread_pool.h"

namespace hearth {

struct LayerShape {
  const char* name;
  int64_t hidden, heads, kv_heads, dim, wide, window;

  int64_t qkv() const { return (heads + 2 * kv_heads) * dim; }
};

inline constexpr LayerShape kShape270M = {"270M", 640, 4, 1, 256, 2048, 512};
inline constexpr LayerShape kShape1B = {"1B", 1152, 4, 1, 256, 6912, 512};
inline constexpr LayerShape kShape4B = {"4B", 2560, 8, 4, 256, 10240, 1024};
inline constexpr LayerShape kShape12B = {"12B", 3840, 16, 8, 256, 15360, 1024};

class MadeUpLayer {
 public:
  static constexpr int64_t kSplit = 128;

  // Creates a layer with KV memory for `tokens` tokens.
  MadeUpLayer(const LayerShape& shape, int64_t tokens, WeightForm form = WeightForm::kStored)
      : shape_(shape), rope_({10000}, static_cast<int>(shape.dim)), drawn_(Drawn()) {
    rope_.Extend(tokens);
    qkv_ = Weights(shape.qkv(), shape.hidden, form);
    out_ = Weights(shape.hidden, shape.heads * shape.dim, form);
    gate_ = Weights(shape.wide, shape.hidden, form);
    up_ = Weights(shape.wide, shape.hidden, form);
    down_ = Weights(shape.hidden, shape.wide, form);
    norm_.assign(static_cast<size_t>(shape.hidden), 0.9f);
    head_norm_.assign(static_cast<size_t>(shape.dim), 0.3f);
    for (int64_t at = 0; at < tokens; at += kSplit) {
      blocks_.emplace_back(static_cast<size_t>(2 * shape.kv_heads * kSplit * shape.dim));
      pointers_.push_back(reinterpret_cast<const std::byte*>(blocks_.back().data()));
    }
  }

  const LayerShape& shape() const { return shape_; }

  // Fills keys and values of positions below `begin` with random numbers, and all others with NaN.
  void Begin(int64_t begin) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (size_t i = 0; i < blocks_.size(); ++i) {
      std::vector<float>& block = blocks_[i];
      for (size_t row = 0; row < block.size() / static_cast<size_t>(shape_.dim); ++row) {
        const int64_t position =
            static_cast<int64_t>(i) * kSplit + static_cast<int64_t>(row) % kSplit;
        float* at = block.data() + row * static_cast<size_t>(shape_.dim);
        if (position < begin) {
          Draw(position * 31 + static_cast<int64_t>(row), shape_.dim, at);
        } else {
          std::fill_n(at, shape_.dim, nan);
        }
      }
    }
  }

  // Returns the kernel phases of a step that computes rows [begin, begin + rows). Valid until the
  // next Plan.
  const KernelPhases& Plan(bool local, int64_t begin, int64_t rows) {
    phases_.Clear();
    tokens_.clear();
    for (int64_t position = begin; position < begin + rows; ++position) {
      float* keys =
          blocks_[static_cast<size_t>(position / kSplit)].data() + position % kSplit * shape_.dim;
      tokens_.push_back({rope_.Cos(position, 1).data, rope_.Sin(position, 1).data,
                         reinterpret_cast<std::byte*>(keys),
                         reinterpret_cast<std::byte*>(keys + shape_.kv_heads * kSplit * shape_.dim),
                         kSplit * shape_.dim});
    }
    sequence_ = {pointers_.data(), begin, rows};
    rows_ = LayerRows{Room(0, rows, shape_.hidden),
                      Room(1, rows, shape_.hidden),
                      Room(2, rows, shape_.qkv()),
                      Room(3, rows, shape_.heads * shape_.dim),
                      Room(4, rows, shape_.wide),
                      Room(5, rows, shape_.hidden),
                      tokens_,
                      {&sequence_, 1},
                      {}};
    for (int64_t row = 0; row < rows; ++row) {
      Draw((begin + row) * 17, shape_.hidden, rows_.x.Row(row));
      Draw((begin + row) * 23 + 5, shape_.hidden, rows_.normed.Row(row));
    }
    AddQueriesKeysValues(View(local), rows_, &workspace_, &phases_);
    AddAttentionAndFeedForward(View(local), norm_.data(), rows_, &workspace_, &phases_);
    return phases_;
  }

  // Computes rows [begin, end) in steps of `step` rows. Returns their residual streams, their
  // normalized rows, and the keys and values of the last KV block.
  std::vector<float> Run(bool local, int64_t begin, int64_t end, int64_t step, ThreadPool* pool) {
    Begin(begin);
    std::vector<float> all;
    for (int64_t at = begin; at < end; at += step) {
      const int64_t rows = std::min(step, end - at);
      Plan(local, at, rows).RunOn(pool);
      for (int64_t row = 0; row < rows; ++row) {
        all.insert(all.end(), rows_.x.Row(row), rows_.x.Row(row) + shape_.hidden);
        all.insert(all.end(), rows_.normed.Row(row), rows_.normed.Row(row) + shape_.hidden);
      }
    }
    const std::vector<float>& block = blocks_[static_cast<size_t>((end - 1) / kSplit)];
    all.insert(all.end(), block.begin(), block.end());
    return all;
  }

 private:
  static constexpr size_t kDrawn = size_t{1} << 16;
  static constexpr int64_t kLongest = 15360;

  // Returns random bfloat16 values with absolute values up to 0.03. Each caller uses a range of
  // them.
  static std::vector<uint16_t> Drawn() {
    std::vector<uint16_t> drawn(kDrawn + kLongest);
    uint64_t state = 1;
    for (uint16_t& bits : drawn) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      bits = static_cast<uint16_t>(0x3c00 | (state >> 33 & 0x80ff));
    }
    return drawn;
  }
  const uint16_t* From(int64_t place) const {
    return drawn_.data() + static_cast<uint64_t>(place) * 2654435761u % kDrawn;
  }
  // Writes `count` random values with absolute values up to 1.
  void Draw(int64_t place, int64_t count, float* to) const {
    const uint16_t* from = From(place);
    for (int64_t i = 0; i < count; ++i) to[i] = 32 * WidenOne(BFloat16{from[i]});
  }

  PackedWeights Weights(int64_t outputs, int64_t inputs, WeightForm form) {
    std::vector<uint16_t> stored(static_cast<size_t>(outputs * inputs));
    for (int64_t row = 0; row < outputs; ++row) {
      std::memcpy(stored.data() + row * inputs, From(++weight_rows_),
                  static_cast<size_t>(inputs) * sizeof(uint16_t));
    }
    const ElementType type = ElementType::kBFloat16;
    return PackedWeights::Pack({{stored.data(), outputs, type}}, PackedType(type, form), inputs,
                               InThisThread);
  }

  Rows Room(size_t number, int64_t rows, int64_t columns) {
    rooms_[number].resize(static_cast<size_t>(rows * columns));
    return {rooms_[number].data(), rows, columns};
  }

  LayerWeights View(bool local) const {
    LayerWeights weights;
    weights.qkv = {&qkv_, 1};
    weights.out = &out_;
    weights.gate = &gate_;
    weights.up = &up_;
    weights.down = &down_;
    weights.post_attention_norm = weights.pre_feedforward_norm = norm_.data();
    weights.post_feedforward_norm = norm_.data();
    weights.heads = {shape_.heads,      shape_.kv_heads,   shape_.dim,
                     head_norm_.data(), head_norm_.data(), 1e-6f};
    weights.attend.heads = shape_.heads;
    weights.attend.kv_heads = shape_.kv_heads;
    weights.attend.head_dim = shape_.dim;
    weights.attend.split = kSplit;
    weights.attend.window = local ? shape_.window : 0;
    return weights;
  }

  const LayerShape shape_;
  RopeTable rope_;
  const std::vector<uint16_t> drawn_;
  int64_t weight_rows_ = 0;
  PackedWeights qkv_, out_, gate_, up_, down_;
  std::vector<float> norm_, head_norm_, rooms_[6];
  std::vector<std::vector<float>> blocks_;
  std::vector<const std::byte*> pointers_;
  std::vector<QkvToken> tokens_;
  AttendSequence sequence_;
  LayerRows rows_;
  Workspace workspace_;
  KernelPhases phases_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_MADE_UP_LAYER_H_
