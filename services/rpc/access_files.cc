#include "services/rpc/access_files.h"

#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace hearth {

bool StaysOnHost(const std::string& address) {
  for (const char* local : {"unix:", "unix-abstract:", "localhost:", "[::1]:"}) {
    if (absl::StartsWith(address, local)) return true;
  }
  // A name may begin with "127." too.
  return absl::StartsWith(address, "127.") &&
         address.find_first_not_of("0123456789.:") == std::string::npos;
}

absl::StatusOr<std::string> ReadFlagFile(const std::string& flag, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file.is_open() || text.fail()) {
    return absl::NotFoundError(
        absl::StrCat("--", flag, ": ", path, " cannot be read, or is empty"));
  }
  return text.str();
}

}  // namespace hearth
