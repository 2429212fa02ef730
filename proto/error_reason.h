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
// prompt in the request. `prompt_tokens`: a number, which may have words around it.
inline absl::Status PromptTooLong(absl::string_view field, uint64_t context_tokens,
                                  const absl::AlphaNum& prompt_tokens) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat(
                        field, ": This model's maximum context length is ", context_tokens,
                        " tokens, the prompt has ", prompt_tokens, ": the prompt is too long")),
                    kContextLengthExceeded);
}

}  // namespace hearth

#endif  // HEARTH_PROTO_ERROR_REASON_H_
