#include "worker/text/tokenizer_loader.h"

#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace hearth {

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& model_dir) {
  const std::filesystem::path path = std::filesystem::path(model_dir) / "tokenizer.model";
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return std::unique_ptr<Tokenizer>();
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) {
    return absl::FailedPreconditionError(absl::StrCat(path.string(), ": ", error.message()));
  }
  if (size > kMaxTokenizerModelBytes) {
    return absl::FailedPreconditionError(absl::StrCat(path.string(), ": a tokenizer of ", size,
                                                      " bytes; the limit is ",
                                                      kMaxTokenizerModelBytes));
  }
  std::string bytes(size, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(bytes.data(), static_cast<std::streamsize>(size))) {
    return absl::FailedPreconditionError(absl::StrCat(path.string(), ": cannot be read"));
  }
  std::string reason;
  std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Parse(bytes, &reason);
  if (tokenizer == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(path.string(), ": ", reason));
  }
  return tokenizer;
}

}  // namespace hearth
