// AskReport: the totals of a run of `hearthctl ask`, as text or as JSON.
//
// Thread safety: none.
#ifndef HEARTH_SERVICES_HEARTHCTL_ASK_ASK_REPORT_H_
#define HEARTH_SERVICES_HEARTHCTL_ASK_ASK_REPORT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "proto/inference.pb.h"
#include "services/hearthctl/ask/question_file.h"
#include "services/hearthctl/generation.h"
#include "services/hearthctl/json_text.h"

namespace hearth {

class AskReport {
 public:
  void AddContext(const v1::PrefillResponse& context) { context_ = context; }
  void AddAnswered() { ++answered_before_; }  // by an earlier run
  void AddAnswer(const GenerationResult& answer);
  // Questions left when the run ended.
  void AddUnanswered(uint32_t questions) { unanswered_ += questions; }

  // Lines, each with its end.
  std::string Text(double total_ms) const;
  Json ToJson(double total_ms) const;
  bool complete() const { return unanswered_ == 0 && failed_ == 0; }

 private:
  // Share of the prompts' tokens.
  double hit_rate() const;
  // REQUIRES: 0 < share <= 1.
  double TtftMs(double share) const;

  std::optional<v1::PrefillResponse> context_;
  uint64_t answered_ = 0, failed_ = 0, answered_before_ = 0, unanswered_ = 0;
  uint64_t cached_tokens_ = 0, computed_tokens_ = 0, new_tokens_ = 0;
  std::vector<double> ttft_ms_;
  std::map<std::string, uint64_t> endings_;  // answers, by finish reason
};

// {"id", "kind", "answer", ...}: a line of the answers, or with "error" of one that failed.
Json AnswerJson(const AskedQuestion& question, const GenerationResult& answer);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_ASK_ASK_REPORT_H_
