// NewFile: writes a file under a temporary name in the same folder. Commit renames it when it is
// complete.
//
// Without Commit the destructor removes the temporary file. Errors name the path. Thread safety:
// none.
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
  // Creates the temporary file. If `replaces` is true, Commit overwrites an existing file.
  // Otherwise an existing file is the error kAlreadyExists, from Create, or from Commit if the file
  // appeared later.
  static absl::StatusOr<std::unique_ptr<NewFile>> Create(const std::string& path, bool replaces);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  absl::Status WriteAt(uint64_t offset, absl::string_view data);
  // Syncs the file to disk and renames it to its path. `mode`: permissions of the file; by default
  // only the owner may read and write. REQUIRES: called at most once.
  absl::Status Commit(mode_t mode = 0600);

  int descriptor() const { return file_; }
  const std::string& temporary_path() const { return temporary_; }  // valid until Commit is called

 private:
  NewFile(std::string path, std::string temporary, int file, bool replaces);

  const std::string path_;
  std::string temporary_;  // empty after Commit has renamed the file
  const int file_;
  const bool replaces_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_NEW_FILE_H_
