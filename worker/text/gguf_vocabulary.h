// Reads the vocabulary of a GGUF header, as one list of pieces.
//
// "llama" has the pieces of tokenizer.model with their scores, or with none that differ: a piece
// then ranks by its id, as Gemma's do. "gpt2" has those of tokenizer.json with their merges. In
// Gemma's own vocabulary the types are Gemma's whatever the file says: Google's files call turn
// markers ordinary text. Of any other they are the file's.
// Thread safety: a pure function. Errors as in vocabulary_file.h.
#ifndef HEARTH_WORKER_TEXT_GGUF_VOCABULARY_H_
#define HEARTH_WORKER_TEXT_GGUF_VOCABULARY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/gguf.h"
#include "worker/text/vocabulary_file.h"

namespace hearth {

// Adds to `notes` what was not taken from the file. REQUIRES: read with its vocabulary.
absl::StatusOr<std::vector<VocabularyPiece>> ReadGgufVocabulary(const GgufHeader& header,
                                                                std::vector<std::string>* notes);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_GGUF_VOCABULARY_H_
