#include "services/rpc/access_files.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_store/base/regular_file.h"

namespace hearth {
namespace {

// A certificate's chain has some KiB, a table of 100,000 tenants 10 MiB.
constexpr uint64_t kMaxFlagFileBytes = uint64_t{16} << 20;

}  // namespace

bool StaysOnHost(const std::string& address) {
  for (const char* local : {"unix:", "unix-abstract:", "localhost:", "[::1]:"}) {
    if (absl::StartsWith(address, local)) return true;
  }
  // A name may begin with "127." too.
  return absl::StartsWith(address, "127.") &&
         address.find_first_not_of("0123456789.:") == std::string::npos;
}

absl::StatusOr<std::string> ReadFlagFile(const std::string& flag, const std::string& path,
                                         bool pipes_too) {
  absl::StatusOr<std::string> text = ReadBoundedFile(path, kMaxFlagFileBytes, pipes_too);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        absl::StrCat("--", flag, ": ", text.status().message()));
  }
  if (text->empty()) return absl::NotFoundError(absl::StrCat("--", flag, ": ", path, " is empty"));
  return text;
}

}  // namespace hearth
