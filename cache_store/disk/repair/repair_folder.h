// RepairFolder: the folder in which a repair makes the new database. Puts that in its place by one
// exchange of two names, so that the data folder has the old database or the new one at any moment.
//
// The destructor removes its contents. Thread safety: none.
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
  // kFailedPrecondition also when the new database could not replace the old one.
  absl::Status Make() const;
  // Whether the file can be linked into it.
  bool CanLink(const std::string& file) const;
  // Puts the new database on stable storage and in its place; returns the path of the old one. An
  // error: nothing was changed.
  absl::StatusOr<std::string> Put(const Progress& progress) const;

 private:
  absl::Status GiveToOwner() const;
  absl::StatusOr<std::string> PutInPlace(const Progress& progress) const;
  absl::StatusOr<std::string> PutAt(const Progress& progress) const;

  const std::string dir_, to_, path_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_REPAIR_REPAIR_FOLDER_H_
