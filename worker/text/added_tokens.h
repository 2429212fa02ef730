// Tokens that other files of a model folder add to its vocabulary, as in transformers.
//
// In transformers, added_tokens_decoder of tokenizer_config.json lists all added tokens. Without
// it, added_tokens.json adds tokens, and special_tokens_map.json names special tokens as
// tokenizer_config.json does. If two files give a token different ids, or an id different tokens,
// transformers' versions and classes differ in which file they use; such a folder is refused.
// Thread safety: pure functions of the files' contents.
#ifndef HEARTH_WORKER_TEXT_ADDED_TOKENS_H_
#define HEARTH_WORKER_TEXT_ADDED_TOKENS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/text/vocabulary_file.h"

namespace hearth {

// Adds the tokens of the folder's other files to `pieces`, read from its file `source`, and marks
// listed tokens as never merged. A new token gets the next id, as in transformers; if its file
// gives a greater id, `notes` records both. Errors name the file. kFailedPrecondition: a file is
// broken, or two files differ; the first differing token is named. kUnimplemented: a token needs a
// feature that Gemma's tokenizer does not have.
absl::Status AddTokens(const std::string& folder, const std::string& source,
                       std::vector<VocabularyPiece>* pieces, std::vector<std::string>* notes);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_ADDED_TOKENS_H_
