// Reads the tokenizer of a model folder: where a file's faults become absl::Status.
//
// Thread safety: a pure function of the file's contents.
#ifndef HEARTH_WORKER_TEXT_TOKENIZER_LOADER_H_
#define HEARTH_WORKER_TEXT_TOKENIZER_LOADER_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/text/tokenizer.h"

namespace hearth {

// Gemma's file has 4.7 MB; the largest published SentencePiece models stay below 20 MB.
inline constexpr size_t kMaxTokenizerModelBytes = size_t{64} << 20;

// Without a tokenizer a worker serves token ids, and says why to whoever sends text.
struct LoadedTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;
  std::string why_none;  // empty where there is one
};

// There is none where the folder has no tokenizer.model, and where that changes a text before it
// makes tokens of it. Errors are one line that names the file and what is wrong with it.
absl::StatusOr<LoadedTokenizer> LoadTokenizer(const std::string& model_dir);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_TOKENIZER_LOADER_H_
