#include "cache_store/disk/data_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

constexpr char kCurrentFile[] = "/db/CURRENT";

}  // namespace

absl::Status CheckIsDataFolder(const std::string& dir) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir + "/db", error)) {
    const std::string name = entry.path().filename().string();
    const std::string kind = entry.path().extension().string();
    if (name == "CURRENT" || absl::StartsWith(name, "MANIFEST-") || kind == ".sst" ||
        kind == ".log" || kind == ".blob") {
      return absl::OkStatus();
    }
  }
  return absl::FailedPreconditionError(absl::StrCat(dir, " is not a store's data folder"));
}

absl::Status CheckCanBeOpened(const std::string& dir) {
  std::error_code error;
  if (std::filesystem::exists(dir + kCurrentFile, error)) return absl::OkStatus();
  if (absl::Status is_one = CheckIsDataFolder(dir); !is_one.ok()) return is_one;
  return absl::DataLossError(absl::StrCat(dir, kCurrentFile, " is gone; hearthctl repair ", dir,
                                          " rebuilds what is still right in the folder"));
}

absl::Status CheckIsNoMountPoint(const std::string& dir) {
  struct statx info {};
  if (::statx(AT_FDCWD, dir.c_str(), 0, STATX_BASIC_STATS, &info) != 0 ||
      (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) == 0) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(dir, " is a mount point: name a folder in it"));
}

absl::Status NotEmpty(const std::string& dir) {
  return absl::FailedPreconditionError(
      absl::StrCat(dir, " is not empty; name a folder that is, or is not there"));
}

}  // namespace hearth
