// QuestionLine: decides which of many questions begins next, so that at most `parallel` are under
// way.
//
// A question that a full worker refused waits until another ends; the limit drops to those that
// run, and grows by one with each that ends. Thread safety: none. Invariants: (1) a question is
// taken again only after PutBack; (2) done() stays true.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_QUESTION_LINE_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_QUESTION_LINE_H_

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <deque>
#include <optional>

namespace hearth {

class QuestionLine {
 public:
  // Without questions, and done.
  QuestionLine() = default;
  QuestionLine(uint32_t questions, uint32_t parallel)
      : questions_(questions), parallel_(parallel), limit_(parallel) {
    assert(parallel >= 1);
  }

  // The question to begin now, if one is.
  std::optional<uint32_t> Take() {
    if (stopped_ || running_ >= limit_) return std::nullopt;
    std::optional<uint32_t> taken;
    if (!refused_.empty()) {
      taken = refused_.front();
      refused_.pop_front();
    } else if (next_ < questions_) {
      taken = next_++;
    }
    if (taken.has_value()) ++running_;
    return taken;
  }
  // A taken question has its answer.
  void NoteAnswered() {
    assert(running_ > 0);
    --running_;
    limit_ = std::min(parallel_, limit_ + 1);
    place_made_ = true;
  }
  // A taken question found no place. False: no question is under way that could free one, and none
  // has ended since the last PutBack.
  bool PutBack(uint32_t question) {
    assert(running_ > 0);
    assert(question < next_ && refused_.size() + running_ <= next_);
    --running_;
    refused_.push_back(question);
    limit_ = std::max(running_, 1U);
    const bool may_find_one = running_ > 0 || place_made_;
    place_made_ = false;
    return may_find_one;
  }
  // None begins any more.
  void Stop() { stopped_ = true; }
  bool done() const {
    return running_ == 0 && (stopped_ || (refused_.empty() && next_ == questions_));
  }

 private:
  uint32_t questions_ = 0, parallel_ = 0;
  uint32_t limit_ = 0;  // at most parallel_
  uint32_t next_ = 0, running_ = 0;
  std::deque<uint32_t> refused_;
  bool place_made_ = false;  // since the last PutBack
  bool stopped_ = false;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_QUESTION_LINE_H_
