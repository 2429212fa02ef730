#include "services/hearthctl/ask/answer_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/serving/json_reader.h"

namespace hearth {
namespace {

constexpr char kOtherFile[] = "; pass another --output";
constexpr char kBegin[] = R"({"id":")";  // of each line

absl::Status FileFailure(const std::string& what, const std::string& path) {
  return absl::NotFoundError(absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(errno)));
}

std::string TextOf(JsonValue json, const char* field) {
  const std::optional<JsonValue> found = json.Find(field);
  return found.has_value() && found->is_string() ? std::string(*found->Text()) : "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<AnswerFile>> AnswerFile::Open(
    const std::string& path, const std::string& context_sha256,
    const std::vector<std::string>& inputs) {
  std::error_code error;
  for (const std::string& input : inputs) {
    if (!std::filesystem::equivalent(path, input, error)) continue;
    return absl::InvalidArgumentError(absl::StrCat(path, " is what is read", kOtherFile));
  }
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
  if (file < 0) return FileFailure("open", path);
  std::unique_ptr<AnswerFile> answers(new AnswerFile(path, file));
  struct stat status = {};
  if (::fstat(file, &status) != 0) return FileFailure("read", path);
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is no file, which answers are kept in"));
  }
  if (::flock(file, LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is being written by another program", kOtherFile));
  }
  if (absl::Status read = answers->ReadAnswers(context_sha256); !read.ok()) return read;
  return answers;
}

AnswerFile::~AnswerFile() { ::close(file_); }

absl::Status AnswerFile::ReadAnswers(const std::string& context_sha256) {
  std::ifstream in(path_, std::ios::binary);
  std::string line;
  for (size_t number = 1; std::getline(in, line); ++number) {
    is_torn_ = in.eof();
    if (is_torn_) {
      const bool may_be_ours = absl::StartsWith(line, kBegin) || absl::StartsWith(kBegin, line);
      return may_be_ours ? absl::OkStatus() : NoAnswer(number);
    }
    whole_bytes_ += static_cast<off_t>(line.size()) + 1;
    const absl::Status read = ReadAnswer(line, number, context_sha256);
    if (!read.ok()) return read;
  }
  return in.bad() ? FileFailure("read", path_) : absl::OkStatus();
}

absl::Status AnswerFile::NoAnswer(size_t number) const {
  return absl::InvalidArgumentError(
      absl::StrCat(path_, " line ", number, " is no answer that hearthctl ask wrote", kOtherFile));
}

absl::Status AnswerFile::ReadAnswer(const std::string& line, size_t number,
                                    const std::string& context_sha256) {
  const absl::StatusOr<JsonDocument> json = JsonDocument::Parse(line, "the line");
  if (!json.ok()) return NoAnswer(number);
  const JsonValue root = json->root();
  const std::string id = TextOf(root, "id"), question = TextOf(root, "question_sha256"),
                    context = TextOf(root, "context_sha256");
  if (id.empty() || question.empty() || context.empty()) {
    return NoAnswer(number);
  }
  if (context != context_sha256) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, " line ", number, " answers a question about another context (sha256 ",
                     context, ", not ", context_sha256, ")", kOtherFile));
  }
  sha256_of_[id] = question;
  models_.emplace(TextOf(root, "model"), number);
  return absl::OkStatus();
}

absl::StatusOr<bool> AnswerFile::Has(const AskedQuestion& question) const {
  const auto found = sha256_of_.find(question.id);
  if (found == sha256_of_.end()) return false;
  if (found->second == question.sha256) return true;
  return absl::FailedPreconditionError(
      absl::StrCat(path_, " has an answer to another question \"", found->first,
                   "\": its text, or a flag for its answer, was not the same", kOtherFile,
                   ", or take that line out"));
}

absl::Status AnswerFile::CheckModel(const std::string& model) const {
  for (const auto& [other, line] : models_) {
    if (other == model) continue;
    return absl::FailedPreconditionError(absl::StrCat(path_, " line ", line,
                                                      " is an answer of another model (", other,
                                                      ", not ", model, ")", kOtherFile));
  }
  return absl::OkStatus();
}

absl::Status AnswerFile::Append(const std::string& line) {
  const std::string whole = line + "\n";
  if (std::exchange(is_torn_, false) && ::ftruncate(file_, whole_bytes_) != 0) {
    return FileFailure("shorten", path_);
  }
  for (size_t written = 0; written < whole.size();) {
    const ssize_t bytes = ::write(file_, whole.data() + written, whole.size() - written);
    if (bytes < 0) return FileFailure("write", path_);
    written += static_cast<size_t>(bytes);
  }
  return absl::OkStatus();
}

}  // namespace hearth
