// NewFile: writes a file under a temporary name next to its path, and renames it when it is
// complete.
//
// Without Commit the temporary file is removed. Errors name the path. Thread safety: none.
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
  // `replaces`: overwrite an existing file. Otherwise an existing file is kAlreadyExists, here or,
  // if it appears later, in Commit.
  static absl::StatusOr<std::unique_ptr<NewFile>> Create(const std::string& path, bool replaces);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  absl::Status WriteAt(uint64_t offset, absl::string_view data);
  // Syncs the file and renames it to its path. `mode`: its permissions; default: only the owner
  // reads and writes. REQUIRES: called once.
  absl::Status Commit(mode_t mode = 0600);

  int descriptor() const { return file_; }
  const std::string& temporary_path() const { return temporary_; }  // valid until Commit

 private:
  NewFile(std::string path, std::string temporary, int file, bool replaces);

  const std::string path_;
  std::string temporary_;  // empty after Commit
  const int file_;
  const bool replaces_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_NEW_FILE_H_
