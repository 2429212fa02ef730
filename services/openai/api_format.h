// ApiFormat: writes the response of one API (chat completions, completions, Responses, Messages):
// the events of a stream, a whole response, and errors.
//
// Completion runs the request and calls its ApiFormat; an ApiFormat knows nothing about the engine.
// An object belongs to one response. Answers have the indexes from 0: all answers to the first
// prompt, then all answers to the second. Thread safety: none; Completion calls one method at a
// time.
#ifndef HEARTH_SERVICES_OPENAI_API_FORMAT_H_
#define HEARTH_SERVICES_OPENAI_API_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/openai/call_reader.h"
#include "services/openai/held_text.h"
#include "services/openai/token_log.h"

namespace hearth {

// What a response says of its request.
struct ResponseTerms {
  std::string id;          // id of the response: "chatcmpl-..."
  std::string model;       // the model name that the request gave
  std::string request_id;  // seed of the ids of calls
  int64_t created = 0;     // time of the request, in seconds since 1970
};

// Tokens of a response so far, all prompts and answers together. `written_tokens` are the tokens
// offered to the store, without restored tokens, so cached and written tokens together are at most
// the tokens of the prompts. Written and generated tokens are known at the end only.
struct AnswerUsage {
  uint64_t prompt_tokens = 0, cached_tokens = 0, written_tokens = 0, generated_tokens = 0;
  std::string cache;  // JSON of the field `hearth_cache`; empty: the request does not ask for it
};

// Why an answer ended. kStopString: a string of `stop` ended the answer.
enum class AnswerEnd : uint8_t { kStop, kStopString, kLength, kToolCalls };

// A whole answer that is not streamed.
struct WholeAnswer {
  // Text and calls; the echoed prompt, if any, is in front of the text.
  ReadAnswer read;
  AnswerEnd end = AnswerEnd::kStop;
  std::string stop_string;         // the string that ended the answer; empty: none or unknown
  const TokenLog* echo = nullptr;  // log probabilities of the echoed prompt; empty or null: no echo
  const TokenLog* log = nullptr;   // null: no log probabilities
};

class ApiFormat {
 public:
  virtual ~ApiFormat() = default;

  // Methods for a stream append complete events ("event: ...\ndata: ...\n\n") to `out`.
  // The stream begins. `usage` has the tokens of the prompts that started so far: with one prompt,
  // all its tokens and restored tokens. `seed`: the seed of the sampling.
  virtual void Begin(std::optional<uint64_t> seed, const AnswerUsage& usage, std::string* out) = 0;
  // The next text or parts of calls of an answer. A text may be empty. `log`: log probabilities of
  // all pieces together; null: none. There may be a log without pieces.
  virtual void AddPieces(size_t index, absl::Span<const CallPiece> pieces, const TokenLog* log,
                         std::string* out) = 0;
  // The answer ends; its pieces are complete. `stop_string` as in WholeAnswer.
  virtual void EndAnswer(size_t index, AnswerEnd end, absl::string_view stop_string,
                         std::string* out) = 0;
  // The stream ends after all answers.
  virtual void End(const AnswerUsage& usage, std::string* out) = 0;
  // The last events of a stream that failed. The stream may have no events so far.
  virtual void Fail(const absl::Status& status, std::string* out) = 0;
  // Returns the event to send while a stream is silent: a comment or a ping.
  virtual absl::string_view Waiting() const { return ": waiting\n\n"; }

  // Returns the bytes that the object holds for later events of the stream. They only grow.
  virtual uint64_t bytes() const { return 0; }

  // A response that is not streamed: BeginWhole, WriteAnswer for each answer, EndWhole. A response
  // to a request with `prewarm` has empty answers.
  virtual void BeginWhole(std::optional<uint64_t> seed, HeldText* out) = 0;
  virtual void WriteAnswer(size_t index, const WholeAnswer& answer, HeldText* out) = 0;
  virtual void EndWhole(const AnswerUsage& usage, HeldText* out) = 0;

  // Returns the body of an HTTP error response.
  virtual std::string ErrorBody(const absl::Status& status) const = 0;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_API_FORMAT_H_
