#include "worker/text/tokenizer_loader.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/model/model_file.h"
#include "worker/text/piece_types.h"

namespace hearth {

absl::StatusOr<LoadedTokenizer> LoadTokenizer(const std::string& model_dir) {
  const std::string path = absl::StrCat(model_dir, "/tokenizer.model");
  const absl::StatusOr<std::string> bytes = ReadModelFile(path, kMaxTokenizerModelBytes);
  if (absl::IsNotFound(bytes.status())) {
    return LoadedTokenizer{nullptr, "this worker's model folder has no tokenizer.model"};
  }
  if (!bytes.ok()) return bytes.status();
  if (HasNormalizer(*bytes)) {
    return LoadedTokenizer{nullptr,
                           absl::StrCat(path,
                                        " has a normalizer, which changes a text before tokens are "
                                        "made of it; Gemma's has none")};
  }
  LoadedTokenizer loaded;
  std::string reason;
  loaded.tokenizer = Tokenizer::Parse(*bytes, &reason);
  if (loaded.tokenizer == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": ", reason));
  }
  return loaded;
}

}  // namespace hearth
