// AnswerFile: the answers of `hearthctl ask` so far, a JSON object a line, so that the next run
// goes on where one stopped.
//
// Each line is written at once, with digests of its context and question and the model that
// answered. A last line without its end, if it begins as an answer, is dropped with the next
// answer: the program died while writing it.
// Thread safety: none. Ownership: holds the file, and a lock on it that keeps a second program out.
#ifndef HEARTH_SERVICES_HEARTHCTL_ASK_ANSWER_FILE_H_
#define HEARTH_SERVICES_HEARTHCTL_ASK_ANSWER_FILE_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/hearthctl/ask/question_file.h"

namespace hearth {

class AnswerFile {
 public:
  // Makes the file where there is none. kInvalidArgument: it has lines that are no answers, or is
  // one of `inputs`.
  // kFailedPrecondition: it is of another context, or another program is writing it.
  static absl::StatusOr<std::unique_ptr<AnswerFile>> Open(
      const std::string& path, const std::string& context_sha256,
      const std::vector<std::string>& inputs = {});
  ~AnswerFile();
  AnswerFile(const AnswerFile&) = delete;
  AnswerFile& operator=(const AnswerFile&) = delete;

  // Whether the question is answered. kFailedPrecondition: another question with its id is.
  absl::StatusOr<bool> Has(const AskedQuestion& question) const;
  // kFailedPrecondition: it has answers of another model than `model`.
  absl::Status CheckModel(const std::string& model) const;
  // `line` without its end.
  absl::Status Append(const std::string& line);

 private:
  AnswerFile(std::string path, int file) : path_(std::move(path)), file_(file) {}
  absl::Status ReadAnswers(const std::string& context_sha256);
  absl::Status NoAnswer(size_t number) const;
  absl::Status ReadAnswer(const std::string& line, size_t number,
                          const std::string& context_sha256);

  const std::string path_;
  const int file_;
  off_t whole_bytes_ = 0;                         // of lines that end
  bool is_torn_ = false;                          // another follows them
  std::map<std::string, std::string> sha256_of_;  // of questions, by id
  std::map<std::string, size_t> models_;          // of answers, and the first line that has each
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_ASK_ANSWER_FILE_H_
