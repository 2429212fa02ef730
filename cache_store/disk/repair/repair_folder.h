// RepairFolder: where a repair makes the new database, and how that gets into its place: by one
// exchange of two names, so that the data folder has the old database or the new one at any moment.
//
// Its contents are removed when it is destroyed. Thread safety: none.
#ifndef HEARTH_CACHE_STORE_DISK_REPAIR_REPAIR_FOLDER_H_
#define HEARTH_CACHE_STORE_DISK_REPAIR_REPAIR_FOLDER_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hearth {

class RepairFolder {
 public:
  using Progress = std::function<void(const std::string&)>;

  // `dir`: the data folder; `to`: the new one, or empty for none.
  RepairFolder(std::string dir, std::string to);
  ~RepairFolder();
  RepairFolder(const RepairFolder&) = delete;
  RepairFolder& operator=(const RepairFolder&) = delete;

  // Laid out as a data folder.
  const std::string& path() const { return path_; }
  // kFailedPrecondition also where the new database could not be put in the old one's place.
  absl::Status Make() const;
  // Whether the file can have a second name in it.
  bool CanLink(const std::string& file) const;
  // What was made is on stable storage, and in its place when it returns; where the old database is
  // then. An error: nothing was changed.
  absl::StatusOr<std::string> Put(const Progress& progress) const;

 private:
  absl::Status GiveToOwner() const;
  absl::StatusOr<std::string> PutInPlace(const Progress& progress) const;
  absl::StatusOr<std::string> PutAt(const Progress& progress) const;

  const std::string dir_, to_, path_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_REPAIR_REPAIR_FOLDER_H_
