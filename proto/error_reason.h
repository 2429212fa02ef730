// ErrorReason: a word for programs that says why a request failed. The words are values of `code`
// in errors of OpenAI's API; they are not sent over gRPC.
//
// Thread safety: pure functions.
#ifndef HEARTH_PROTO_ERROR_REASON_H_
#define HEARTH_PROTO_ERROR_REASON_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace hearth {

// key of the reason in the absl::Status payload
inline constexpr char kErrorReason[] = "hearth/error-reason";
// key of the payload with the length of a prompt that is too long
inline constexpr char kPromptExcess[] = "hearth/prompt-excess";
inline constexpr char kContextLengthExceeded[] = "context_length_exceeded";
inline constexpr char kModelNotFound[] = "model_not_found";
inline constexpr char kUnsupportedParameter[] = "unsupported_parameter";

inline absl::Status WithReason(absl::Status status, absl::string_view reason) {
  status.SetPayload(kErrorReason, absl::Cord(reason));
  return status;
}

// Returns the reason word of an error; "" if the status has none.
inline std::string ReasonOf(const absl::Status& status) {
  const auto reason = status.GetPayload(kErrorReason);
  return reason.has_value() ? std::string(*reason) : "";
}

// Returns a kInvalidArgument error. Clients search its text for fixed phrases: litellm for "This
// model's maximum context length is", LangChain for "prompt is too long". `field`: path of the
// prompt in the request. `prompt_tokens`: a number, which may have words before it. `free_tokens`:
// tokens of the context that must stay free for the answer.
inline absl::Status PromptTooLong(absl::string_view field, uint64_t context_tokens,
                                  const absl::AlphaNum& prompt_tokens, uint64_t free_tokens = 0) {
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(
      field, ": This model's maximum context length is ", context_tokens,
      " tokens, the prompt has ", prompt_tokens,
      free_tokens > 0 ? ", which leaves no token to generate" : "", ": the prompt is too long"));
  status.SetPayload(kPromptExcess,
                    absl::Cord(absl::StrCat(prompt_tokens, " tokens > ",
                                            context_tokens - free_tokens, " maximum")));
  return WithReason(std::move(status), kContextLengthExceeded);
}

// Returns "M tokens > N maximum" for an error of PromptTooLong; "" for other errors.
inline std::string PromptExcessOf(const absl::Status& status) {
  const auto excess = status.GetPayload(kPromptExcess);
  return excess.has_value() ? std::string(*excess) : "";
}

}  // namespace hearth

#endif  // HEARTH_PROTO_ERROR_REASON_H_
