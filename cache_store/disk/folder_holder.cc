#include "cache_store/disk/folder_holder.h"

#include <fcntl.h>
#include <unistd.h>

#include "cache_store/disk/disk_tier_db.h"

namespace hearth {

std::optional<pid_t> FolderHolder(const std::string& dir) {
  const int file = ::open((DatabasePath(dir) + "/LOCK").c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return std::nullopt;
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  const bool is_held = ::fcntl(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  ::close(file);
  if (!is_held) return std::nullopt;
  return lock.l_pid;
}

}  // namespace hearth
