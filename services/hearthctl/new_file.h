// NewFile: a file that is written beside its place, and seen under its name once it is whole.
//
// Without Commit nothing is left behind. Thread safety: none. Errors name the path.
#ifndef HEARTH_SERVICES_HEARTHCTL_NEW_FILE_H_
#define HEARTH_SERVICES_HEARTHCTL_NEW_FILE_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace hearth {

class NewFile {
 public:
  // `replaces`: a file that has the name; otherwise that is kAlreadyExists,
  // here and, if it came meanwhile, in Commit.
  static absl::StatusOr<std::unique_ptr<NewFile>> Create(const std::string& path, bool replaces);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  absl::Status WriteAt(uint64_t offset, absl::string_view data);
  // Syncs it and gives it its name. `mode`: who may read and write it; its owner alone. Once.
  absl::Status Commit(mode_t mode = 0600);

  int descriptor() const { return file_; }
  const std::string& temporary_path() const { return temporary_; }  // until Commit

 private:
  NewFile(std::string path, std::string temporary, int file, bool replaces);

  const std::string path_;
  std::string temporary_;  // empty once it is gone
  const int file_;
  const bool replaces_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_NEW_FILE_H_
