#include "services/store/worker_reports.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {

absl::Status WorkerReports::Add(const v1::ReportRequest& report, const std::string& id) {
  const std::pair<const char*, uint64_t> fields[] = {{"requests", report.requests()},
                                                     {"prompt_tokens", report.prompt_tokens()},
                                                     {"cached_tokens", report.cached_tokens()},
                                                     {"own_tokens", report.own_tokens()}};
  for (const auto& [name, value] : fields) {
    if (value <= kMaxOfOne) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", value, " is above the limit, ", kMaxOfOne));
  }
  absl::MutexLock lock(&mutex_);
  if (std::count(recent_.begin(), recent_.end(), id) > 0) return absl::OkStatus();
  recent_.push_back(id);
  if (recent_.size() > kRecent) recent_.pop_front();
  sums_.requests += report.requests();
  sums_.prompt_tokens += report.prompt_tokens();
  sums_.cached_tokens += report.cached_tokens();
  sums_.own_tokens += report.own_tokens();
  return absl::OkStatus();
}

WorkerReports::Sums WorkerReports::Read() const {
  absl::MutexLock lock(&mutex_);
  return sums_;
}

}  // namespace hearth
