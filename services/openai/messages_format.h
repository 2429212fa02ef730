// MessagesFormat: writes the responses of Anthropic's Messages API, and their errors.
//
// A response has the text as blocks of type "text" and the calls as blocks of type "tool_use", in
// the order in which the model wrote them; a whole response has all text first. An answer has at
// least one block, which may be an empty text. In a whole response, a call that the end of the
// answer cuts is left out; a stream has already sent its beginning. The field input_tokens has the
// tokens of the prompt that were neither restored nor offered to the store, so the three fields of
// the usage about the prompt add up to its tokens.
// Thread safety: as ApiFormat; functions are pure.
#ifndef HEARTH_SERVICES_OPENAI_MESSAGES_FORMAT_H_
#define HEARTH_SERVICES_OPENAI_MESSAGES_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/openai/api_format.h"
#include "services/openai/openai_request.h"
#include "worker/text/tokenizer.h"

namespace hearth {

// Returns the body of an HTTP error: {"type": "error", "error": {"type", "message"}}.
std::string MessagesErrorBody(int http_status, absl::string_view message);
std::string MessagesErrorBody(const absl::Status& status);

class MessagesFormat final : public ApiFormat {
 public:
  // REQUIRES: the request has one prompt and one answer.
  MessagesFormat(const OpenAiRequest& request, const ResponseTerms& terms,
                 const Tokenizer* tokenizer);

  void Begin(std::optional<uint64_t> seed, const AnswerUsage& usage, std::string* out) override;
  void AddPieces(size_t index, absl::Span<const CallPiece> pieces, const TokenLog* log,
                 std::string* out) override;
  void EndAnswer(size_t index, AnswerEnd end, absl::string_view stop_string,
                 std::string* out) override;
  void End(const AnswerUsage& usage, std::string* out) override;
  void Fail(const absl::Status& status, std::string* out) override;
  absl::string_view Waiting() const override;
  void BeginWhole(std::optional<uint64_t> seed, HeldText* out) override;
  void WriteAnswer(size_t index, const WholeAnswer& answer, HeldText* out) override;
  void EndWhole(const AnswerUsage& usage, HeldText* out) override;
  std::string ErrorBody(const absl::Status& status) const override {
    return MessagesErrorBody(status);
  }

 private:
  // Returns the fields of a response before its content.
  std::string Head() const;
  std::string ToolUseId(size_t call) const;
  // Sets the fields about the end of the answer.
  void NoteEnd(AnswerEnd end, absl::string_view stop_string);
  // Returns "stop_reason": ..., "stop_sequence": ...
  std::string EndFields() const;
  // Begins a block of a stream. `block`: JSON of the block.
  void OpenBlock(CallPiece::Kind kind, absl::string_view block, std::string* out);
  void CloseBlock(std::string* out);

  const ResponseTerms terms_;
  const size_t earlier_calls_;
  const bool has_answer_;  // false: the request only stores the prompt
  size_t blocks_ = 0;      // blocks of the stream that began
  // kind of the open block of the stream; kArguments: a call. Empty: no block is open.
  std::optional<CallPiece::Kind> open_;
  const char* stop_reason_ = "end_turn";
  std::string stop_sequence_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_MESSAGES_FORMAT_H_
