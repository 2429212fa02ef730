// Reads the JSON bodies of requests for the fuzz targets. Thread safety: any thread.
#ifndef HEARTH_TESTS_FUZZ_REQUEST_BODY_H_
#define HEARTH_TESTS_FUZZ_REQUEST_BODY_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/openai/openai_request.h"
#include "services/openai/responses_request.h"
#include "services/serving/http/http_server.h"
#include "services/serving/json_reader.h"
#include "tests/fuzz/fuzz_input.h"

namespace hearth {

using OtherJson = nlohmann::ordered_json;

inline constexpr size_t kMaxMessageBytes = 2048;
inline constexpr uint32_t kContextTokens = 64;

// Returns the error message. Checks first that it is short and can be put into JSON.
inline std::string CheckedMessage(const absl::Status& status) {
  const std::string message(status.message());
  Require(!message.empty() && message.size() <= kMaxMessageBytes, "a long error, or an empty one");
  const OtherJson body = OtherJson::parse(HttpErrorBody(400, message));
  Require(body["error"]["message"] == message, "an error that is no UTF-8");
  return message;
}

enum class Api : uint8_t { kCompletions, kChats, kResponses };

inline absl::StatusOr<OpenAiRequest> Parse(Api api, JsonValue body) {
  switch (api) {
    case Api::kChats:
      return ParseChat(body);
    case Api::kResponses:
      return ParseResponses(body);
    default:
      return ParseCompletion(body, kContextTokens);
  }
}

// Parses a request body as OpenAiServer does. `hold` counts its memory. Returns OK if the body is a
// valid request, else the error.
inline absl::Status ReadBody(Api api, absl::string_view body,
                             const std::function<bool(uint64_t)>& hold) {
  const absl::StatusOr<JsonDocument> parsed = ParseBody(body, hold);
  if (!parsed.ok()) return parsed.status();
  const absl::StatusOr<OpenAiRequest> request = Parse(api, parsed->root());
  if (!request.ok()) return request.status();
  Require(!request->prompts.empty() && request->prompts.size() <= kMaxPrompts, "its prompts");
  Require(request->bytes() <= 64 * body.size() + 8192, "a request much larger than its body");
  if (api == Api::kResponses) {
    const std::string repeated = absl::StrCat("{", request->repeated.substr(1), "}");
    Require(OtherJson::accept(repeated), "repeated fields that are not JSON");
  }
  if (!hold(request->bytes())) return absl::UnavailableError("no memory");
  return absl::OkStatus();
}

}  // namespace hearth

#endif  // HEARTH_TESTS_FUZZ_REQUEST_BODY_H_
