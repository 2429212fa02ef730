#include "services/hearthctl/data_dir_check.h"

namespace hearth {

int CheckDataDir(const std::string& dir, bool json, Console& console) {
  (void)json;
  return Fail(console, absl::UnimplementedError(dir + ": data folders cannot be checked yet"));
}

}  // namespace hearth
