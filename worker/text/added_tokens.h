// Tokens that files beside a model folder's vocabulary add to it, as transformers reads them.
//
// In transformers, the added_tokens_decoder of tokenizer_config.json lists all tokens that are
// added to the vocabulary. If there is none, added_tokens.json adds some, and the special tokens of
// special_tokens_map.json count like those of tokenizer_config.json. Where two files name different
// ids for a token, or different tokens for an id, transformers' versions and classes differ in
// which file counts; the folder is then refused.
// Thread safety: pure functions of the files' contents.
#ifndef HEARTH_WORKER_TEXT_ADDED_TOKENS_H_
#define HEARTH_WORKER_TEXT_ADDED_TOKENS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/text/vocabulary_file.h"

namespace hearth {

// Adds to `pieces`, read from the file `source` of the folder, the tokens of the other files, and
// makes tokens that they list never merged. A new token gets the next id, as in transformers; if
// its file says a greater one, `notes` gets both. Errors name the file: kFailedPrecondition, a file
// is broken, or two differ, with the first token that does; kUnimplemented, a token asks for what
// Gemma's tokenizer does not do.
absl::Status AddTokens(const std::string& folder, const std::string& source,
                       std::vector<VocabularyPiece>* pieces, std::vector<std::string>* notes);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_ADDED_TOKENS_H_
