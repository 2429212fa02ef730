// ChatFormat and CompletionFormat: write the responses of /v1/chat/completions and of
// /v1/completions.
//
// Thread safety and ownership: as ApiFormat; the tokenizer must outlive the objects.
#ifndef HEARTH_SERVICES_OPENAI_CHAT_FORMAT_H_
#define HEARTH_SERVICES_OPENAI_CHAT_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/openai/api_format.h"
#include "services/openai/http_error.h"
#include "services/openai/openai_request.h"
#include "worker/text/tokenizer.h"

namespace hearth {

// ChoiceFormat: what both responses have in common: the list "choices", and the fields around it.
class ChoiceFormat : public ApiFormat {
 public:
  ChoiceFormat(const OpenAiRequest& request, const ResponseTerms& terms,
               const Tokenizer* tokenizer);

  void End(const AnswerUsage& usage, std::string* out) final;
  void Fail(const absl::Status& status, std::string* out) final;
  void EndWhole(const AnswerUsage& usage, HeldText* out) final;
  std::string ErrorBody(const absl::Status& status) const final {
    return OpenAiErrorBody(status, sent_);
  }

 protected:
  // Sets the fields before "choices". `object`: the type of the response.
  void SetHead(absl::string_view object, std::optional<uint64_t> seed);
  // Writes these fields as the beginning of a whole response.
  void WriteHead(absl::string_view object, std::optional<uint64_t> seed, HeldText* out);
  // Appends an event with one choice. `fields`: JSON of the choice's fields after its index.
  void AddEvent(size_t index, absl::string_view fields, std::string* out) const;
  static void BeginChoice(size_t index, HeldText* out);
  const Tokenizer* tokenizer() const { return tokenizer_; }

 private:
  const ResponseTerms terms_;
  const SentNames sent_;
  const std::string cache_key_;
  const bool include_usage_;  // each event has the field "usage"
  const bool ends_in_usage_;  // the last event has the usage
  const Tokenizer* const tokenizer_;
  std::string envelope_;  // the start of the response's JSON object, up to "choices"
};

class ChatFormat final : public ChoiceFormat {
 public:
  // `tokenizer`: null if the model has no tokenizer.
  ChatFormat(const OpenAiRequest& request, const ResponseTerms& terms, const Tokenizer* tokenizer);

  void Begin(std::optional<uint64_t> seed, const AnswerUsage& usage, std::string* out) override;
  void AddPieces(size_t index, absl::Span<const CallPiece> pieces, const TokenLog* log,
                 std::string* out) override;
  void EndAnswer(size_t index, AnswerEnd end, absl::string_view stop_string,
                 std::string* out) override;
  void BeginWhole(std::optional<uint64_t> seed, HeldText* out) override;
  void WriteAnswer(size_t index, const WholeAnswer& answer, HeldText* out) override;

 private:
  // Returns the beginning of a call's JSON object: its id and its type.
  std::string CallHead(size_t answer, size_t call) const;
  // Returns the JSON value of the field "delta" for a piece.
  std::string DeltaOf(size_t answer, const CallPiece& piece) const;
  void WriteMessage(size_t index, const ReadAnswer& read, HeldText* out) const;
  void WriteLogprobs(const TokenLog* log, HeldText* out) const;

  const std::string request_id_;
  const size_t earlier_calls_;
  const size_t answers_;  // number of answers
  const bool may_call_;
  const bool stream_;
};

class CompletionFormat final : public ChoiceFormat {
 public:
  using ChoiceFormat::ChoiceFormat;

  void Begin(std::optional<uint64_t> seed, const AnswerUsage& usage, std::string* out) override;
  void AddPieces(size_t index, absl::Span<const CallPiece> pieces, const TokenLog* log,
                 std::string* out) override;
  void EndAnswer(size_t index, AnswerEnd end, absl::string_view stop_string,
                 std::string* out) override;
  void BeginWhole(std::optional<uint64_t> seed, HeldText* out) override;
  void WriteAnswer(size_t index, const WholeAnswer& answer, HeldText* out) override;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_CHAT_FORMAT_H_
