// ChatReader and other readers of the parts of a request that several APIs have in common: messages
// and tools of a chat, sampling parameters, stop strings and cache options.
//
// Each reader returns kInvalidArgument "PATH: ..." for the first wrong field.
// Thread safety: none; an object belongs to one request.
#ifndef HEARTH_SERVICES_OPENAI_CHAT_READER_H_
#define HEARTH_SERVICES_OPENAI_CHAT_READER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/inference.pb.h"
#include "services/openai/openai_fields.h"
#include "services/openai/openai_request.h"
#include "services/openai/tools.h"
#include "services/serving/json_reader.h"

namespace hearth {

// Default of max_tokens of a chat. 4,096 tokens are a long answer to a chat; a larger default would
// reserve more memory for each chat.
inline constexpr uint32_t kChatTokens = 4096;

// Claude Code begins its system text with this line, which is not for the model. It has a checksum
// of the first message, in versions with "cch=" of the request. So conversations, or even requests,
// would not share the system text.
inline constexpr char kBillingHeader[] = "x-anthropic-billing-header:";

// Forms of the content of a message, for error messages.
inline constexpr char kContentForms[] = "a string or a list of parts";

// Reads the fields of a JSON object. Fields with a no-op value of the table (openai_fields.h) count
// as absent.
JsonFields FieldsOf(JsonValue object, FieldPlace place);

// Reads stop strings or other short strings: a string, or a list of at most `most` strings. Skips
// empty strings in the list.
absl::Status ReadTexts(std::optional<JsonValue> texts, size_t most,
                       const std::function<void(std::string)>& add);
// Reads prompt_cache_key, hearth_explain, cache_prompt and prompt_cache_options. Sets `is_explicit`
// if only the breakpoints of the request count.
absl::Status ReadCacheOptions(JsonFields* fields, bool* is_explicit, OpenAiRequest* request);
// Reads the sampling parameters. The server sets defaults for absent parameters later.
void ReadSampling(JsonFields* fields, v1::SamplingParams* sampling);
// Reads the model, the number of answers, max_tokens, sampling parameters, stop strings and options
// of streams. `max_tokens`: the default.
absl::Status ReadCommon(JsonFields* fields, uint32_t max_tokens, OpenAiRequest* request);
// Sets the number of answers, the maximum number of tokens of each answer, and the fields that are
// the same for all APIs. `max_tokens` 0: only the echoed prompt is sent.
void SetAnswers(uint64_t n, uint64_t max_tokens, OpenAiRequest* request);
// Stores the rules of the answer, and moves their grammar to the request.
absl::Status Constrain(absl::StatusOr<AnswerRules> rules, OpenAiRequest* request);

// Checks the size of a text of the prompt here, where the path in the body is known: the prompt's
// messages differ from the body's. The text was made from the value `source`.
absl::Status CheckSize(JsonValue source, size_t bytes);
absl::Status CheckSize(JsonValue text);

// ChatReader: makes the messages of a prompt from the messages of a request. ReadMessages reads the
// messages of chat completions. Another API calls AddTools, then AddMessage and AddResult for each
// message in order, then Finish.
class ChatReader {
 public:
  // If `keeps_system` is true, the end of the tools is a breakpoint; if the chat has no other
  // breakpoint, the end of the system text is one, too. `ttl_s`: time to live of the request.
  // `own`: the model's template, which gets tools, calls and results as fields of the chat; null:
  // tools, calls and results become texts of messages.
  ChatReader(v1::Chat* chat, UnknownFields* unknown, bool keeps_system, uint32_t ttl_s,
             const TemplateTools* own)
      : chat_(chat),
        unknown_(unknown),
        keeps_system_(keeps_system),
        in_text_(own == nullptr),
        ttl_s_(ttl_s) {}

  // Adds the text of the tools; nothing if there are no tools. `source`: the field `tools`. `kept`:
  // ascending indexes of tools that end at a breakpoint, in addition to the last tool.
  absl::Status AddTools(const std::vector<Tool>& tools, std::optional<JsonValue> source,
                        const std::vector<size_t>& kept = {});
  // Checks that the field `messages` is a list of 1 to kMaxChatMessages elements.
  static absl::Status CheckMessages(std::optional<JsonValue> messages);
  absl::Status ReadMessages(std::optional<JsonValue> messages);

  // Appends a part with the text to the message.
  static absl::Status ReadText(JsonValue text, v1::ChatMessage* made);
  // Appends a content part {"type": ..., "text": ...} with one of the types, and reads its
  // breakpoints.
  absl::Status ReadPart(JsonValue part, FieldPlace place, absl::Span<const char* const> types,
                        v1::ChatMessage* made);
  // Reads the cache breakpoint of a content part, or of a message whose last part is `last`; null:
  // the message has no part. Accepts each field name that clients use for it.
  absl::Status ReadBreakpoints(JsonValue object, FieldPlace place, v1::ContentPart* last);
  // Appends the text of the calls to the last part of an assistant message, which then has a part.
  // `source`: the value to name in an error about the size of the text.
  absl::Status AddCalls(JsonValue source, const std::vector<PastCall>& calls,
                        v1::ChatMessage* made);
  // Adds a message. A first line kBillingHeader of a system text is left out. Returns the message
  // in the chat, which is valid until the next message is added.
  v1::ChatMessage* AddMessage(v1::ChatMessage made);
  // Adds the result of the call `id` as a user message with one part. The parts of `made` are the
  // text of the result; a breakpoint of any part is kept. Results between two other messages are
  // sorted in the order of their calls. `failed`: the result is an error message.
  absl::StatusOr<v1::ChatMessage*> AddResult(JsonValue source, JsonValue id, v1::ChatMessage made,
                                             bool failed = false);
  // Ends the chat: adds the last results and the breakpoint of the system text.
  void Finish();

  // Sets a breakpoint at the end of the part, which lives for at least `seconds`.
  void SetBreakpoint(uint32_t seconds, v1::ContentPart* part);
  // Returns the longest time to live of the request and of its breakpoints, in seconds.
  uint32_t ttl_s() const { return ttl_s_; }
  size_t calls() const { return history_.calls(); }

 private:
  absl::Status ReadMessage(JsonValue message);
  absl::Status ReadContent(JsonValue message, bool is_answer, v1::ChatMessage* made);
  // Moves `results_` to the chat, in the order of their calls.
  void AddResults();

  v1::Chat* const chat_;
  UnknownFields* const unknown_;
  const bool keeps_system_;
  const bool in_text_;  // tools, calls and results are texts of messages
  bool has_breakpoint_ = false;
  uint32_t ttl_s_;
  CallHistory history_;
  // Results of calls since the last other message, each with the number of its call.
  std::vector<std::pair<size_t, v1::ChatMessage>> results_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_CHAT_READER_H_
