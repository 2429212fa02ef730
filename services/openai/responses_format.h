// ResponsesFormat: writes responses of OpenAI's Responses API.
//
// A response is a list of items: a message for text, and a function_call for each call. A stream
// repeats an item when the item ends, and all items in the last event:
//
//   response.created, response.in_progress
//   for a message:   output_item.added, content_part.added, output_text.delta ...,
//                    output_text.done, content_part.done, output_item.done
//   for a call:      output_item.added, function_call_arguments.delta ...,
//                    function_call_arguments.done, output_item.done
//   response.completed, response.incomplete or response.failed
//
// So this object keeps the JSON of all items. If the stream fails, the open item gets no events
// ".done" and is not in response.failed: clients take these events for the whole text, and run a
// call at its output_item.done. Thread safety: none.
#ifndef HEARTH_SERVICES_OPENAI_RESPONSES_FORMAT_H_
#define HEARTH_SERVICES_OPENAI_RESPONSES_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/openai/api_format.h"
#include "services/openai/http_error.h"
#include "services/openai/openai_request.h"
#include "worker/text/tokenizer.h"

namespace hearth {

class ResponsesFormat final : public ApiFormat {
 public:
  // REQUIRES: `request` has its prompt.
  ResponsesFormat(const OpenAiRequest& request, const ResponseTerms& terms, const Tokenizer*);

  void Begin(std::optional<uint64_t> seed, const AnswerUsage& usage, std::string* out) override;
  void AddPieces(size_t index, absl::Span<const CallPiece> pieces, const TokenLog* log,
                 std::string* out) override;
  void EndAnswer(size_t index, AnswerEnd end, absl::string_view stop_string,
                 std::string* out) override;
  void End(const AnswerUsage& usage, std::string* out) override;
  void Fail(const absl::Status& status, std::string* out) override;
  uint64_t bytes() const override;

  void BeginWhole(std::optional<uint64_t> seed, HeldText* out) override;
  void WriteAnswer(size_t index, const WholeAnswer& answer, HeldText* out) override;
  void EndWhole(const AnswerUsage& usage, HeldText* out) override;

  std::string ErrorBody(const absl::Status& status) const override {
    return OpenAiErrorBody(status, sent_);
  }

 private:
  enum class Item : uint8_t { kNone, kMessage, kCall };

  // Returns the response's JSON in front of its items, and after them. `error` and `usage`: JSON.
  std::string Head(std::optional<uint64_t> seed) const;
  std::string Tail(absl::string_view status, absl::string_view error,
                   absl::string_view usage) const;
  // Appends an event. `fields`: JSON of its fields, beginning with a comma.
  template <typename... Fields>
  void AddEvent(std::string* out, absl::string_view type, const Fields&... fields);
  // Appends an event with the whole response.
  void AddResponse(std::string* out, absl::string_view status, absl::string_view error,
                   absl::string_view usage);
  // Begins an item: sets its id. `call`: its index in the answer and its name.
  void BeginMessage();
  void BeginCall(size_t answer, size_t call, absl::string_view name);
  // Returns JSON of the item in front of its text or arguments, and after them.
  std::string ItemStart(bool has_text) const;
  std::string ItemEnd(bool has_text, absl::string_view status) const;
  void OpenItem(std::string* out);
  // Appends the next part of the text or of the arguments of the open item.
  void AddDelta(absl::string_view text, std::string* out);
  // Ends the open item, if there is one.
  void CloseItem(bool is_complete, std::string* out);
  void WriteItem(absl::string_view text, bool is_complete, HeldText* out);

  const ResponseTerms terms_;
  const SentNames sent_;
  const std::string repeated_;             // OpenAiRequest::repeated
  const size_t earlier_calls_, messages_;  // numbers of calls and of messages of the prompt

  std::string head_;       // the result of Head; empty: the stream has not begun
  uint64_t sequence_ = 0;  // number of the next event
  std::string items_;      // JSON of the items that ended
  size_t item_count_ = 0;  // number of items, including the open item
  AnswerEnd end_ = AnswerEnd::kStop;
  // The open item of a stream, or the item that is being written.
  Item item_ = Item::kNone;
  std::string item_id_, call_id_, call_name_;
  std::string text_;  // text or arguments so far, as the inside of a JSON string
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_RESPONSES_FORMAT_H_
