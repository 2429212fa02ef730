// The grammars of a build without llguidance (-DHEARTH_GRAMMARS=off): each schema is refused.
#include <string>
#include <utility>

#include "worker/text/grammar.h"

namespace hearth {

std::string GrammarLibraryVersion() { return ""; }

GrammarEngine::GrammarEngine(const Tokenizer* tokenizer, std::vector<int32_t> eos,
                             int32_t vocab_size)
    : tokenizer_(tokenizer), eos_(std::move(eos)), vocab_size_(vocab_size) {}

absl::StatusOr<std::shared_ptr<const Grammar>> GrammarEngine::Compile(const GrammarSpec& /*spec*/) {
  ++refused_;
  return absl::FailedPreconditionError(
      "grammar: this worker was built without grammars (-DHEARTH_GRAMMARS=off)");
}

}  // namespace hearth
