// StepLogits: the logits that a step returns for the last tokens of one sequence. The CPU writes
// them to a vector; a device copies them to memory that it reaches fast (pinned memory). If greedy
// tokens suffice, a device returns only those.
//
// Thread safety: none. Ownership: owns the memory. The values are valid until the sequence's next
// step.
#ifndef HEARTH_WORKER_MODEL_STEP_LOGITS_H_
#define HEARTH_WORKER_MODEL_STEP_LOGITS_H_

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace hearth {

// The token of the greatest logit of a row. If a logit is not finite, the first such token.
struct GreedyToken {
  int32_t id = 0;
  bool is_finite = true;
};

// A row of StepLogits.
struct LogitRow {
  absl::Span<float> values;  // [vocabulary]; empty if only `greedy` was returned
  std::optional<GreedyToken> greedy;
};

class StepLogits {
 public:
  StepLogits() = default;
  explicit StepLogits(std::vector<float> values) : host_(std::move(values)), size_(host_.size()) {}
  // A moved-from StepLogits can only be assigned to.
  StepLogits(StepLogits&&) = default;
  StepLogits& operator=(StepLogits&&) = default;

  // Returns the logits of all rows: [rows][vocabulary].
  absl::Span<float> values() const { return {data_ + first_, size_ - first_}; }
  // Returns row `row` of `rows` rows.
  LogitRow Row(size_t row, size_t rows) const {
    assert(row < rows && values().size() % rows == 0);
    if (!greedy_.empty()) return {{}, greedy_.at(row)};
    const size_t vocabulary = values().size() / rows;
    return {values().subspan(row * vocabulary, vocabulary), std::nullopt};
  }
  bool empty() const { return size_ == first_; }

  // Returns ordinary memory for `size` logits, which become the values.
  float* Resize(size_t size) {
    host_.resize(size);
    return Use(host_.data(), nullptr, size);
  }
  // Makes `memory`, which holds `size` logits, the values. The previous memory is released.
  void Set(std::shared_ptr<float[]> memory, size_t size) {
    float* const data = memory.get();
    Use(data, std::move(memory), size);
  }
  // Makes the greedy token of each row the result, without logits.
  void SetGreedy(std::vector<GreedyToken> tokens) {
    Use(nullptr, nullptr, 0);
    greedy_ = std::move(tokens);
  }
  // Removes all values but the last `size`.
  void KeepLast(size_t size) {
    assert(size <= values().size());
    first_ = size_ - size;
  }
  // Returns the values as a vector; without a copy if Resize was the last call.
  std::vector<float> Take() && {
    if (pinned_ == nullptr && first_ == 0) return std::move(host_);
    return {values().begin(), values().end()};
  }

 private:
  float* Use(float* data, std::shared_ptr<float[]> pinned, size_t size) {
    pinned_ = std::move(pinned);
    greedy_.clear();
    data_ = data;
    first_ = 0;
    size_ = size;
    return data_;
  }

  std::vector<float> host_;
  std::shared_ptr<float[]> pinned_;
  float* data_ = host_.data();
  std::vector<GreedyToken> greedy_;
  size_t first_ = 0, size_ = 0;  // the values are data_[first_, size_)
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_STEP_LOGITS_H_
