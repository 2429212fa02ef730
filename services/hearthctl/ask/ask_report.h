// AskReport: the totals of a run of `hearthctl ask`, overall and for each kind of question, as a
// table or as JSON.
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
  void AddAnswered();  // by an earlier run
  void AddAnswer(const std::string& kind, const GenerationResult& answer);
  // Questions left when the run ended.
  void AddUnanswered(uint32_t questions) { unanswered_ += questions; }

  // Lines, each with its end: the context, a row for each kind, how the answers ended.
  std::string Table(double total_ms) const;
  Json ToJson(double total_ms) const;
  bool complete() const { return unanswered_ == 0 && all_.failed == 0; }

 private:
  struct Row {
    uint64_t answered = 0, failed = 0;
    uint64_t cached_tokens = 0, computed_tokens = 0, new_tokens = 0;
    std::vector<double> ttft_ms;

    void Add(const GenerationResult& answer);
    // Share of the prompts' tokens.
    double hit_rate() const;
    // REQUIRES: 0 < share <= 1.
    double TtftMs(double share) const;
    Json ToJson() const;
  };
  // The rows of the table, and their totals.
  std::string Rows(double total_ms) const;
  static std::string Line(const std::string& name, const Row& row, size_t name_columns);

  std::optional<v1::PrefillResponse> context_;
  Row all_;
  std::map<std::string, Row> kinds_;
  std::map<std::string, uint64_t> endings_;  // answers, by finish reason
  uint64_t answered_before_ = 0;
  uint64_t unanswered_ = 0;
};

// {"id", "kind", "answer", ...}: a line of the answers, or with "error" of one that failed.
Json AnswerJson(const AskedQuestion& question, const GenerationResult& answer);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_ASK_ASK_REPORT_H_
