#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "worker/text/grammar.h"

namespace hearth {
namespace {

// Follows the current line as long as it may become a trigger.
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
      // The trigger's last token breaks the schema: the answer continues from the token before.
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
  // Adds `text` to the line, up to the end of a trigger, which it removes with all before it.
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

  // Has the grammar take the text's tokens, if it allows them all.
  absl::StatusOr<bool> Begin(const std::string& text) {
    const std::vector<int32_t> tokens = EncodePlain(*tokenizer_, text);
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
  std::string line_;       // without white space before it; as far as it is of use
  bool may_match_ = true;  // the line may become a trigger
  bool obeys_ = false;     // a trigger was reached
};

}  // namespace

std::vector<int32_t> EncodePlain(const Tokenizer& tokenizer, std::string_view text) {
  EncodeRules rules;
  rules.plain = {{0, text.size()}};
  Encoding encoding;
  tokenizer.EncodeWithOffsets(text, {}, rules, &encoding);
  return std::move(encoding.ids);
}

std::unique_ptr<GrammarState> AfterTrigger(std::unique_ptr<GrammarState> inner,
                                           const Tokenizer* tokenizer,
                                           std::shared_ptr<const GrammarSpec> spec) {
  return std::make_unique<TriggeredState>(std::move(inner), tokenizer, std::move(spec));
}

}  // namespace hearth
