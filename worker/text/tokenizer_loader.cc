#include "worker/text/tokenizer_loader.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/model/model_file.h"
#include "worker/text/vocabulary_file.h"

namespace hearth {

absl::StatusOr<LoadedTokenizer> LoadTokenizer(const std::string& model_dir) {
  LoadedTokenizer loaded;
  for (const char* const name : {"tokenizer.model", "tokenizer.json"}) {
    const std::string path = absl::StrCat(model_dir, "/", name);
    const absl::StatusOr<std::string> bytes = ReadModelFile(path, kMaxTokenizerBytes);
    if (absl::IsNotFound(bytes.status())) continue;
    if (!bytes.ok()) return bytes.status();
    const bool is_model = std::string_view(name) == "tokenizer.model";
    const auto pieces = is_model ? ReadTokenizerModel(*bytes) : ReadTokenizerJson(*bytes);
    absl::Status status = pieces.status();
    if (status.ok()) {
      absl::StatusOr<std::unique_ptr<Tokenizer>> made = Tokenizer::Make(*pieces);
      status = made.status();
      if (made.ok()) loaded.tokenizer = *std::move(made);
    }
    loaded.file = name;
    if (absl::IsUnimplemented(status)) {
      loaded.why_none =
          absl::StrCat(path, ": ", status.message(), ", which Gemma's tokenizer does not");
    } else if (!status.ok()) {
      return absl::FailedPreconditionError(absl::StrCat(path, ": ", status.message()));
    }
    return loaded;
  }
  loaded.why_none = "this worker's model folder has no tokenizer.model and no tokenizer.json";
  return loaded;
}

}  // namespace hearth
