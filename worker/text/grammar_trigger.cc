#include "worker/text/grammar_trigger.h"

#include <algorithm>
#include <cassert>
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
  TriggeredState(std::unique_ptr<GrammarState> inner, const Tokenizer* tokenizer, size_t mask_words,
                 std::shared_ptr<const GrammarSpec> spec)
      : inner_(std::move(inner)),
        tokenizer_(tokenizer),
        mask_words_(mask_words),
        spec_(std::move(spec)) {}

  absl::StatusOr<absl::Span<const uint32_t>> Allow() override {
    assert(without_refused_.empty() || without_refused_.size() == mask_words_);
    if (!obeys_) return absl::MakeConstSpan(without_refused_);
    return inner_->Allow();
  }

  absl::StatusOr<bool> Accept(int32_t token) override {
    if (obeys_) return inner_->Accept(token);
    const std::string before = line_;
    const bool before_may_match = may_match_;
    std::string_view rest = tokenizer_->TokenBytes(token);
    const bool continues = !before.empty() && rest.find('\n') == rest.npos;
    while (ReachesTrigger(&rest)) {
      absl::StatusOr<bool> begun = Begin(line_ + std::string(rest));
      if (!begun.ok() || *begun) return begun;
      if (rest.empty() || !continues) continue;
      const absl::StatusOr<bool> allows = Allows(tokenizer_->EncodePlain(before));
      if (!allows.ok()) return allows;
      if (!*allows) continue;
      // The last token of the trigger breaks the schema, but another token could complete the
      // trigger. The caller draws again, without this token. The rest of the state depends only on
      // accepted tokens, so that a continued answer has the same state.
      line_ = before;
      may_match_ = before_may_match;
      Refuse(token);
      return false;
    }
    without_refused_.clear();
    return true;
  }

  std::vector<int32_t> Forced(size_t most) override {
    return obeys_ ? inner_->Forced(most) : std::vector<int32_t>();
  }
  absl::StatusOr<size_t> CountAllowed(absl::Span<const int32_t> tokens) override {
    if (!obeys_) return tokens.size();
    return inner_->CountAllowed(tokens);
  }
  bool MustEnd() override { return obeys_ && inner_->MustEnd(); }
  std::unique_ptr<GrammarState> Clone() const override {
    auto clone = std::make_unique<TriggeredState>(inner_->Clone(), tokenizer_, mask_words_, spec_);
    clone->without_refused_ = without_refused_;
    clone->line_ = line_;
    clone->may_match_ = may_match_;
    clone->obeys_ = obeys_;
    return clone;
  }

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

  absl::StatusOr<bool> Allows(const std::vector<int32_t>& tokens) {
    const absl::StatusOr<size_t> allowed = inner_->CountAllowed(tokens);
    if (!allowed.ok()) return allowed.status();
    return *allowed == tokens.size();
  }

  void Refuse(int32_t token) {
    without_refused_.resize(mask_words_, UINT32_MAX);
    assert(token >= 0 && static_cast<size_t>(token) / 32 < mask_words_);
    without_refused_[static_cast<size_t>(token) / 32] &= ~(uint32_t{1} << (token % 32));
  }

  // If `inner` allows all tokens of `text`, accepts them and returns true. Otherwise returns false.
  absl::StatusOr<bool> Begin(const std::string& text) {
    const std::vector<int32_t> tokens = tokenizer_->EncodePlain(text);
    absl::StatusOr<bool> allows = Allows(tokens);
    if (!allows.ok() || !*allows) return allows;
    for (const int32_t token : tokens) {
      const absl::StatusOr<bool> accepted = inner_->Accept(token);
      if (!accepted.ok()) return accepted.status();
    }
    obeys_ = true;
    return true;
  }

  const std::unique_ptr<GrammarState> inner_;
  const Tokenizer* const tokenizer_;
  const size_t mask_words_;
  const std::shared_ptr<const GrammarSpec> spec_;
  // Mask without the tokens that Accept refused since it last accepted a token; empty: none.
  std::vector<uint32_t> without_refused_;
  std::string line_;       // the current line without leading white space, while may_match_
  bool may_match_ = true;  // the current line may still become a trigger
  bool obeys_ = false;     // a trigger was found, so inner_ decides
};

}  // namespace

std::unique_ptr<GrammarState> AfterTrigger(std::unique_ptr<GrammarState> inner,
                                           const Tokenizer* tokenizer, size_t mask_words,
                                           std::shared_ptr<const GrammarSpec> spec) {
  return std::make_unique<TriggeredState>(std::move(inner), tokenizer, mask_words, std::move(spec));
}

}  // namespace hearth
