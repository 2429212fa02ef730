// Tokens that other files of a model folder add to its vocabulary, as in transformers.
//
// In transformers, the field added_tokens_decoder of tokenizer_config.json lists all added tokens.
// If it is missing, added_tokens.json adds tokens, and special_tokens_map.json and
// tokenizer_config.json name special tokens. A folder is refused if two files give one token
// different ids, or one id different tokens: transformers' versions and classes differ in which
// file they use.
// Thread safety: pure functions of the files' contents.
#ifndef HEARTH_WORKER_TEXT_ADDED_TOKENS_H_
#define HEARTH_WORKER_TEXT_ADDED_TOKENS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/text/vocabulary_file.h"

namespace hearth {

// Adds the tokens of the folder's other files to `pieces`, which were read from its file `source`.
// Marks the listed tokens as never merged. A new token gets the next id, as in transformers; if its
// file gives a greater id, adds a note about both ids. Errors name the file. kFailedPrecondition: a
// file is broken, or two files contradict each other; the error names the first token in question.
// kUnimplemented: a token needs a feature that Gemma's tokenizer does not have.
absl::Status AddTokens(const std::string& folder, const std::string& source,
                       std::vector<VocabularyPiece>* pieces, std::vector<std::string>* notes);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_ADDED_TOKENS_H_
