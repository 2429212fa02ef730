// Reads the vocabulary of a GGUF header as a list of pieces.
//
// "llama" has the pieces of tokenizer.model with their scores; if they are missing or all 0, a
// piece ranks by its id, as Gemma's pieces do. "gpt2" has the pieces of tokenizer.json with their
// merges. For Gemma's own vocabulary, the types are Gemma's and the file's types are ignored:
// Google's files mark turn markers as ordinary text. For other vocabularies the file's types count.
// Thread safety: a pure function. Errors as in vocabulary_file.h.
#ifndef HEARTH_WORKER_TEXT_GGUF_VOCABULARY_H_
#define HEARTH_WORKER_TEXT_GGUF_VOCABULARY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/gguf.h"
#include "worker/text/vocabulary_file.h"

namespace hearth {

// Adds to `notes` what differs from the file. REQUIRES: the header was read with its vocabulary.
absl::StatusOr<std::vector<VocabularyPiece>> ReadGgufVocabulary(const GgufHeader& header,
                                                                std::vector<std::string>* notes);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_GGUF_VOCABULARY_H_
