// Reads the vocabulary of a GGUF header as a list of pieces.
//
// If tokenizer.ggml.model is "llama", the header has the pieces of tokenizer.model with their
// scores. If scores are missing or all 0, pieces are ranked by id, as Gemma's are. If it is "gpt2",
// the header has the pieces of tokenizer.json with their merges. For Gemma's own vocabulary the
// types in the file are ignored, because Google's files mark turn markers as ordinary text; other
// vocabularies use the types in the file.
// Thread safety: a pure function. Errors: see vocabulary_file.h.
#ifndef HEARTH_WORKER_TEXT_GGUF_VOCABULARY_H_
#define HEARTH_WORKER_TEXT_GGUF_VOCABULARY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/gguf.h"
#include "worker/text/vocabulary_file.h"

namespace hearth {

// Adds to `notes` how the returned pieces differ from the file. REQUIRES: `header` was read with
// its vocabulary.
absl::StatusOr<std::vector<VocabularyPiece>> ReadGgufVocabulary(const GgufHeader& header,
                                                                std::vector<std::string>* notes);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_GGUF_VOCABULARY_H_
