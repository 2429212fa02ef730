// ErrorReason: why a request failed, as a word for programs. The words are the values of `code` in
// OpenAI's API; they are not sent over gRPC.
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

inline constexpr char kErrorReason[] = "hearth/error-reason";  // key of the status payload
inline constexpr char kContextLengthExceeded[] = "context_length_exceeded";
inline constexpr char kModelNotFound[] = "model_not_found";
inline constexpr char kUnsupportedParameter[] = "unsupported_parameter";

inline absl::Status WithReason(absl::Status status, absl::string_view reason) {
  status.SetPayload(kErrorReason, absl::Cord(reason));
  return status;
}

// Returns the reason; "" if the status has none.
inline std::string ReasonOf(const absl::Status& status) {
  const auto reason = status.GetPayload(kErrorReason);
  return reason.has_value() ? std::string(*reason) : "";
}

// Returns kInvalidArgument. Clients search the text: litellm for "This model's maximum context
// length is", LangChain for "prompt is too long". `field`: the prompt's path in the request.
// `prompt_tokens`: a number, optionally with words around it.
inline absl::Status PromptTooLong(absl::string_view field, uint64_t context_tokens,
                                  const absl::AlphaNum& prompt_tokens) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat(
                        field, ": This model's maximum context length is ", context_tokens,
                        " tokens, the prompt has ", prompt_tokens, ": the prompt is too long")),
                    kContextLengthExceeded);
}

}  // namespace hearth

#endif  // HEARTH_PROTO_ERROR_REASON_H_
