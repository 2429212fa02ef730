#include "services/openai/unknown_field_log.h"

namespace hearth {

std::vector<std::string> UnknownFieldLog::TakeNew(const UnknownFields& fields, absl::Time now) {
  std::vector<std::string> taken;
  absl::MutexLock lock(&mutex_);
  for (const std::string& name : fields.names()) {
    if (seen_.size() >= kMaxNames) break;
    if (seen_.count(name) > 0) continue;
    if (!rate_.Take(now).has_value()) break;
    seen_.insert(name);
    taken.push_back(name);
  }
  return taken;
}

}  // namespace hearth
