#include "services/hearthctl/ask/ask_report.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace hearth {
namespace {

constexpr char kAllRows[] = "all";
constexpr char kNoKind[] = "(no kind)";

// "1,000,500".
std::string WithCommas(uint64_t value) {
  std::string text = absl::StrCat(value);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

}  // namespace

void AskReport::Row::Add(const GenerationResult& answer) {
  if (!answer.status.ok()) {
    ++failed;
    return;
  }
  ++answered;
  cached_tokens += answer.started.cached_tokens();
  computed_tokens += answer.finished.computed_tokens();
  new_tokens += answer.finished.generated_tokens();
  ttft_ms.push_back(answer.finished.ttft_ms());
}

double AskReport::Row::hit_rate() const {
  const uint64_t tokens = cached_tokens + computed_tokens;
  return tokens == 0 ? 0 : static_cast<double>(cached_tokens) / static_cast<double>(tokens);
}

double AskReport::Row::TtftMs(double share) const {
  assert(share > 0 && share <= 1);
  if (ttft_ms.empty()) return 0;
  std::vector<double> sorted = ttft_ms;
  std::sort(sorted.begin(), sorted.end());
  const double rank = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(rank) - 1];
}

Json AskReport::Row::ToJson() const {
  return Json{{"questions", answered + failed},
              {"answered", answered},
              {"failed", failed},
              {"cached_tokens", cached_tokens},
              {"computed_tokens", computed_tokens},
              {"new_tokens", new_tokens},
              {"hit_rate", hit_rate()},
              {"ttft_median_ms", TtftMs(0.5)},
              {"ttft_p99_ms", TtftMs(0.99)}};
}

void AskReport::AddAnswered() { ++answered_before_; }

void AskReport::AddAnswer(const std::string& kind, const GenerationResult& answer) {
  all_.Add(answer);
  kinds_[kind.empty() ? kNoKind : kind].Add(answer);
  if (answer.status.ok()) ++endings_[FinishReasonText(answer.finished.reason())];
}

std::string AskReport::Line(const std::string& name, const Row& row, size_t name_columns) {
  std::string line = name;
  line.resize(std::max(name.size(), name_columns), ' ');
  return absl::StrFormat("%s %10s %9s %7s %14s %16s %8.1f%% %12s %12s\n", line,
                         WithCommas(row.answered + row.failed), WithCommas(row.answered),
                         WithCommas(row.failed), WithCommas(row.cached_tokens),
                         WithCommas(row.computed_tokens), 100 * row.hit_rate(),
                         MsText(row.TtftMs(0.5)), MsText(row.TtftMs(0.99)));
}

std::string AskReport::Rows(double total_ms) const {
  std::string table;
  size_t columns = 5;  // of the names
  for (const auto& [kind, row] : kinds_) columns = std::max(columns, kind.size());
  std::string name = "kind";
  name.resize(columns, ' ');
  absl::StrAppend(
      &table, absl::StrFormat("%s %10s %9s %7s %14s %16s %9s %12s %12s\n", name, "questions",
                              "answered", "failed", "tokens cached", "tokens computed", "hit rate",
                              "TTFT median", "TTFT p99"));
  if (kinds_.size() > 1) {
    for (const auto& [kind, row] : kinds_) table += Line(kind, row, columns);
  }
  table += Line(kAllRows, all_, columns);
  absl::StrAppend(&table, WithCommas(all_.new_tokens), " new tokens in ", MsText(total_ms));
  for (const auto& [ending, count] : endings_) {
    absl::StrAppend(&table, ", ", WithCommas(count), " ended by ", ending);
  }
  table += "\n";
  return table;
}

std::string AskReport::Table(double total_ms) const {
  std::string table;
  if (context_.has_value()) {
    absl::StrAppend(&table, "context: ", WithCommas(context_->prompt_tokens()), " tokens shared, ",
                    WithCommas(context_->cached_tokens()), " cached, ",
                    WithCommas(context_->computed_tokens()), " computed, ready after ",
                    MsText(context_->total_ms()), "\n");
  }
  if (all_.answered + all_.failed > 0) table += Rows(total_ms);
  if (answered_before_ > 0) {
    absl::StrAppend(&table, WithCommas(answered_before_), " were answered before\n");
  }
  if (unanswered_ > 0) absl::StrAppend(&table, WithCommas(unanswered_), " were not answered\n");
  return table;
}

Json AskReport::ToJson(double total_ms) const {
  Json json = all_.ToJson();
  json["answered_before"] = answered_before_;
  json["unanswered"] = unanswered_;
  json["total_ms"] = total_ms;
  if (context_.has_value()) {
    json["context"] = {{"tokens", context_->prompt_tokens()},
                       {"cached_tokens", context_->cached_tokens()},
                       {"computed_tokens", context_->computed_tokens()},
                       {"source_tier", TierText(context_->source_tier())},
                       {"total_ms", context_->total_ms()}};
  }
  json["finish_reasons"] = Json::object();
  for (const auto& [ending, count] : endings_) json["finish_reasons"][ending] = count;
  json["kinds"] = Json::object();
  for (const auto& [kind, row] : kinds_) json["kinds"][kind] = row.ToJson();
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
