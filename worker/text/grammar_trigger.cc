#include "worker/text/grammar_trigger.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace hearth {
namespace {

// TriggeredState: collects the current line while the line may still become a trigger. After a
// trigger, `inner` decides which tokens are allowed.
class TriggeredState final : public GrammarState {
 public:
  TriggeredState(std::unique_ptr<GrammarState> inner, const Tokenizer* tokenizer,
                 std::shared_ptr<const GrammarSpec> spec)
      : inner_(std::move(inner)), tokenizer_(tokenizer), spec_(std::move(spec)) {}

  absl::StatusOr<absl::Span<const uint32_t>> Allow() override {
    if (!obeys_) return absl::Span<const uint32_t>();
    return inner_->Allow();
  }

  absl::StatusOr<bool> Accept(int32_t token) override {
    if (obeys_) return inner_->Accept(token);
    const std::string before = line_;
    std::string_view rest = tokenizer_->TokenBytes(token);
    const bool continues = !before.empty() && rest.find('\n') == rest.npos;
    while (ReachesTrigger(&rest)) {
      absl::StatusOr<bool> begun = Begin(line_ + std::string(rest));
      if (!begun.ok() || *begun) return begun;
      if (rest.empty() || !continues) continue;
      // The last token of the trigger breaks the schema. Start the grammar before this token; the
      // caller draws another token.
      begun = Begin(before);
      if (!begun.ok()) return begun;
      if (*begun) return false;
    }
    return true;
  }

  std::vector<int32_t> Forced(size_t most) override {
    return obeys_ ? inner_->Forced(most) : std::vector<int32_t>();
  }
  size_t CountAllowed(absl::Span<const int32_t> tokens) override {
    return obeys_ ? inner_->CountAllowed(tokens) : tokens.size();
  }
  bool MustEnd() override { return obeys_ && inner_->MustEnd(); }

 private:
  // Moves characters from the front of *text to line_, until line_ is a trigger or *text is empty.
  // Returns whether line_ is a trigger.
  bool ReachesTrigger(std::string_view* text) {
    const std::vector<std::string>& triggers = spec_->triggers;
    while (!text->empty()) {
      const char next = text->front();
      text->remove_prefix(1);
      if (next == '\n') {
        line_.clear();
        may_match_ = true;
      } else if (may_match_ && (!line_.empty() || !absl::ascii_isspace(next))) {
        line_ += next;
        may_match_ = std::any_of(triggers.begin(), triggers.end(),
                                 [this](const auto& one) { return absl::StartsWith(one, line_); });
        if (std::count(triggers.begin(), triggers.end(), line_) > 0) return true;
      }
    }
    return false;
  }

  // If `inner` allows all tokens of `text`, accepts them and returns true. Otherwise returns false.
  absl::StatusOr<bool> Begin(const std::string& text) {
    const std::vector<int32_t> tokens = tokenizer_->EncodePlain(text);
    if (inner_->CountAllowed(tokens) < tokens.size()) return false;
    for (const int32_t token : tokens) {
      const absl::StatusOr<bool> accepted = inner_->Accept(token);
      if (!accepted.ok()) return accepted.status();
    }
    obeys_ = true;
    return true;
  }

  const std::unique_ptr<GrammarState> inner_;
  const Tokenizer* const tokenizer_;
  const std::shared_ptr<const GrammarSpec> spec_;
  std::string line_;       // the current line without leading white space, while may_match_
  bool may_match_ = true;  // the current line may still become a trigger
  bool obeys_ = false;     // a trigger was found, so inner_ decides
};

}  // namespace

std::unique_ptr<GrammarState> AfterTrigger(std::unique_ptr<GrammarState> inner,
                                           const Tokenizer* tokenizer,
                                           std::shared_ptr<const GrammarSpec> spec) {
  return std::make_unique<TriggeredState>(std::move(inner), tokenizer, std::move(spec));
}

}  // namespace hearth
