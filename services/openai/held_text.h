// HeldText: the text of an HTTP response. Before the text grows, the growth is counted against the
// memory budget for HTTP.
//
// Thread safety: none. Ownership: the HttpAnswer must outlive the HeldText. The bytes stay counted
// until the HttpAnswer is destroyed, or after Send until the response is sent. If constructed
// without an HttpAnswer, nothing is counted: use this for a streamed event, because
// HttpAnswer::Write counts events.
#ifndef HEARTH_SERVICES_OPENAI_HELD_TEXT_H_
#define HEARTH_SERVICES_OPENAI_HELD_TEXT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/serving/http/http_server.h"
#include "services/serving/json_value.h"

namespace hearth {

// Returns the error for a response that does not fit into the memory budget.
inline absl::Status NoAnswerMemory() {
  return absl::UnavailableError(
      "the server has no memory left for this answer now; try again later, or ask for fewer "
      "answers, log probabilities or tokens");
}

class HeldText {
 public:
  explicit HeldText(HttpAnswer* answer = nullptr) : answer_(answer) {}

  // Appends `text`. If it does not fit into the memory budget, drops the whole text, and fits()
  // returns false from now on.
  void Append(absl::string_view text) {
    if (!fits_) return;
    const size_t size = text_.size() + text.size();
    if (size > held_) {
      const uint64_t more = std::max<uint64_t>(size - held_, std::max<uint64_t>(held_ / 2, 4096));
      fits_ = answer_ == nullptr || answer_->Hold(more);
      if (!fits_) return std::string().swap(text_);
      held_ += more;
      text_.reserve(held_);
    }
    text_.append(text.data(), text.size());
  }
  // Counts `bytes` of memory outside the text. If they do not fit, drops the text.
  bool Hold(uint64_t bytes) {
    if (fits_ && answer_ != nullptr) fits_ = answer_->Hold(bytes);
    if (!fits_) std::string().swap(text_);
    return fits_;
  }
  // Appends `text` as a JSON string. Escapes and counts 4 KiB at a time, so that text beyond the
  // memory budget is never escaped.
  void AppendString(absl::string_view text) {
    constexpr size_t kPartBytes = 4096;
    Append("\"");
    while (!text.empty() && fits_) {
      size_t end = std::min(text.size(), kPartBytes);
      const auto is_inside = [&] {
        return end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80;
      };
      for (int i = 0; i < 3 && is_inside(); ++i) --end;
      part_.clear();
      AppendJsonString(text.substr(0, end), &part_);
      Append(absl::string_view(part_).substr(1, part_.size() - 2));
      text.remove_prefix(end);
    }
    Append("\"");
  }
  void AppendNumber(double number) {
    part_.clear();
    AppendJsonNumber(number, &part_);
    Append(part_);
  }
  bool fits() const { return fits_; }
  // REQUIRES: fits().
  std::string Take() { return std::move(text_); }
  // Sends the text with status 200. REQUIRES: fits(), and the object was constructed with an
  // HttpAnswer.
  void Send(const HttpHeaders& headers) {
    answer_->Send(200, headers, std::move(text_), std::exchange(held_, 0));
  }

 private:
  HttpAnswer* const answer_;
  std::string text_;
  std::string part_;
  uint64_t held_ = 0;
  bool fits_ = true;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_HELD_TEXT_H_
