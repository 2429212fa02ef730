#include "services/hearthctl/ask/ask_report.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace hearth {

void AskReport::AddAnswer(const GenerationResult& answer) {
  if (!answer.status.ok()) {
    ++failed_;
    return;
  }
  ++answered_;
  cached_tokens_ += answer.started.cached_tokens();
  computed_tokens_ += answer.finished.computed_tokens();
  new_tokens_ += answer.finished.generated_tokens();
  ttft_ms_.push_back(answer.finished.ttft_ms());
  ++endings_[FinishReasonText(answer.finished.reason())];
}

double AskReport::hit_rate() const {
  const uint64_t tokens = cached_tokens_ + computed_tokens_;
  return tokens == 0 ? 0 : static_cast<double>(cached_tokens_) / static_cast<double>(tokens);
}

double AskReport::TtftMs(double share) const {
  assert(share > 0 && share <= 1);
  if (ttft_ms_.empty()) return 0;
  std::vector<double> sorted = ttft_ms_;
  std::sort(sorted.begin(), sorted.end());
  const double rank = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(rank) - 1];
}

std::string AskReport::Text(double total_ms) const {
  std::string text;
  if (context_.has_value()) {
    absl::StrAppend(&text, "context: ", context_->prompt_tokens(), " tokens shared, ",
                    context_->cached_tokens(), " cached, ", context_->computed_tokens(),
                    " computed, ready after ", MsText(context_->total_ms()), "\n");
  }
  if (answered_ + failed_ > 0) {
    absl::StrAppend(&text, "questions: ", answered_, " answered, ", failed_,
                    " failed; tokens: ", cached_tokens_, " cached, ", computed_tokens_,
                    " computed (", absl::StrFormat("%.1f%%", 100 * hit_rate()),
                    " cached); first token after ", MsText(TtftMs(0.5)), " (median), ",
                    MsText(TtftMs(0.99)), " (p99)\n");
    absl::StrAppend(&text, new_tokens_, " new tokens in ", MsText(total_ms));
    for (const auto& [ending, count] : endings_) {
      absl::StrAppend(&text, ", ", count, " ended by ", ending);
    }
    text += "\n";
  }
  if (answered_before_ > 0) absl::StrAppend(&text, answered_before_, " were answered before\n");
  if (unanswered_ > 0) absl::StrAppend(&text, unanswered_, " were not answered\n");
  return text;
}

Json AskReport::ToJson(double total_ms) const {
  Json json{{"questions", answered_ + failed_},
            {"answered", answered_},
            {"failed", failed_},
            {"cached_tokens", cached_tokens_},
            {"computed_tokens", computed_tokens_},
            {"new_tokens", new_tokens_},
            {"hit_rate", hit_rate()},
            {"ttft_median_ms", TtftMs(0.5)},
            {"ttft_p99_ms", TtftMs(0.99)},
            {"answered_before", answered_before_},
            {"unanswered", unanswered_},
            {"total_ms", total_ms}};
  if (context_.has_value()) {
    json["context"] = {{"tokens", context_->prompt_tokens()},
                       {"cached_tokens", context_->cached_tokens()},
                       {"computed_tokens", context_->computed_tokens()},
                       {"source_tier", TierText(context_->source_tier())},
                       {"total_ms", context_->total_ms()}};
  }
  json["finish_reasons"] = Json(endings_);
  return json;
}

Json AnswerJson(const AskedQuestion& question, const GenerationResult& answer) {
  Json json{{"id", question.id}};
  if (!question.kind.empty()) json["kind"] = question.kind;
  if (!answer.status.ok()) {
    json["error"] = answer.status.error_message();
    json["error_code"] = static_cast<int>(answer.status.error_code());
    return json;
  }
  json["answer"] = answer.samples[0].text;
  json["finish_reason"] = FinishReasonText(answer.finished.reason());
  json["prompt_tokens"] = answer.started.prompt_tokens();
  json["cached_tokens"] = answer.started.cached_tokens();
  json["computed_tokens"] = answer.finished.computed_tokens();
  json["source_tier"] = TierText(answer.started.source_tier());
  json["ttft_ms"] = answer.finished.ttft_ms();
  json["total_ms"] = answer.finished.total_ms();
  json["token_ids"] = answer.samples[0].token_ids;
  return json;
}

}  // namespace hearth
