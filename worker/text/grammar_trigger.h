// Grammars with triggers: the answer is free text up to a trigger, then obeys the schema.
#ifndef HEARTH_WORKER_TEXT_GRAMMAR_TRIGGER_H_
#define HEARTH_WORKER_TEXT_GRAMMAR_TRIGGER_H_

#include <cstddef>
#include <memory>

#include "worker/text/grammar.h"
#include "worker/text/tokenizer.h"

namespace hearth {

// Returns a state that allows all tokens up to one of the triggers of `spec`. From the trigger on,
// the text obeys `inner`. `tokenizer` must outlive the state. `mask_words`: size of a token mask in
// 32-bit words. REQUIRES: `inner` has accepted no token; `spec` has triggers.
std::unique_ptr<GrammarState> AfterTrigger(std::unique_ptr<GrammarState> inner,
                                           const Tokenizer* tokenizer, size_t mask_words,
                                           std::shared_ptr<const GrammarSpec> spec);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_GRAMMAR_TRIGGER_H_
