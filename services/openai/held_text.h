// HeldText: text of an answer. Each growth is first counted against the memory budget for HTTP.
//
// Thread safety: none. Ownership: the answer must outlive it. The bytes stay counted until the
// answer ends; after Send, until the answer is sent. Without an answer nothing is counted: use it
// so for an event, since HttpAnswer::Write counts events.
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

// The error if an answer does not fit into the memory budget.
inline absl::Status NoAnswerMemory() {
  return absl::UnavailableError(
      "the server has no memory left for this answer now; try again later, or ask for fewer "
      "answers, log probabilities or tokens");
}

class HeldText {
 public:
  explicit HeldText(HttpAnswer* answer = nullptr) : answer_(answer) {}

  // If the budget has no room for the text, drops all text; fits() is false from then on.
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
  // Appends `text` as a JSON string, in parts of 4 KiB: parts that do not fit are never escaped.
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
  // Answers 200 with the text. REQUIRES: fits(), and an answer was given to the constructor.
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
