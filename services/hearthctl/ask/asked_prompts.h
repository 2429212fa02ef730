// AskedPrompts: the prompts of `hearthctl ask` as token ids, and the boundary that all share.
//
// A text's last tokens depend on what follows it, so that each question is turned into tokens
// behind the text's end. Of a long text that end is its last words: `Make` checks that their tokens
// are the same behind the whole text as alone, and those of a question that they begin as they do.
// Then no token reaches across their beginning, and the tokens before it are the text's own.
// Thread safety: const once made. Ownership: a value.
#ifndef HEARTH_SERVICES_HEARTHCTL_ASK_ASKED_PROMPTS_H_
#define HEARTH_SERVICES_HEARTHCTL_ASK_ASKED_PROMPTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/inference.pb.h"
#include "services/hearthctl/ask/question_file.h"

namespace hearth {

class AskedPrompts {
 public:
  using Tokenize = std::function<absl::StatusOr<v1::TokenizeResponse>(const v1::PromptInput&)>;
  // Calls a function with each number below `count`, several at a time.
  using ForEach = std::function<void(size_t count, const std::function<void(size_t)>&)>;

  // The error is one of the context, or of a call that no other question would survive.
  static absl::StatusOr<AskedPrompts> Make(const v1::PromptInput& context,
                                           const std::vector<AskedQuestion>& questions,
                                           const Tokenize& tokenize, const ForEach& for_each);

  // Tokens that the context and all questions have in common.
  uint32_t boundary() const { return boundary_; }
  // These tokens. REQUIRES: boundary() > 0.
  v1::PromptInput Shared() const;
  // The error is of this question alone.
  absl::StatusOr<v1::PromptInput> PromptOf(size_t question) const;

 private:
  // The first `common` tokens of the context, then the rest.
  struct Asked {
    absl::Status status;
    uint32_t common = 0;
    std::vector<uint32_t> rest, breakpoints;
  };

  absl::Status ReadContext(const v1::PromptInput& context, const Tokenize& tokenize);
  absl::Status FindEnd(const std::string& text, const Tokenize& tokenize);
  absl::StatusOr<Asked> Read(const v1::PromptInput& context, const AskedQuestion& question,
                             const Tokenize& tokenize) const;
  absl::StatusOr<Asked> BehindEnd(const AskedQuestion& question, const Tokenize& tokenize) const;
  Asked Behind(const v1::TokenizeResponse& whole) const;

  std::vector<uint32_t> context_;
  std::string end_;                // of a long text
  std::vector<uint32_t> end_ids_;  // with what every text begins with
  std::vector<Asked> asked_;
  std::vector<uint32_t> breakpoints_;  // below the boundary
  uint32_t boundary_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_ASK_ASKED_PROMPTS_H_
