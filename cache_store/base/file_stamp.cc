#include "cache_store/base/file_stamp.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"

namespace hearth {

std::string FileStampOf(const std::string& path) {
  struct stat found = {};
  if (path.empty() || stat(path.c_str(), &found) != 0) return "";
  return absl::StrCat(found.st_dev, " ", found.st_ino, " ", found.st_size, " ",
                      found.st_mtim.tv_sec, " ", found.st_mtim.tv_nsec, " ", found.st_ctim.tv_sec,
                      " ", found.st_ctim.tv_nsec);
}

}  // namespace hearth
