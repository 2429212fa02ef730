#include "services/serving/log_rate.h"

#include <algorithm>
#include <vector>

#include "cache_store/base/clock.h"

namespace hearth {

std::optional<uint64_t> LogRate::Take(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const absl::Time full = std::max(full_, now) + every_;
  if (full > now + at_once_ * every_) {
    ++left_out_;
    return std::nullopt;
  }
  full_ = full;
  const uint64_t left_out = left_out_;
  left_out_ = 0;
  return left_out;
}

bool LogSometimes(LogRate* rate, LogLevel level, absl::string_view event,
                  std::initializer_list<LogField> fields) {
  return LogFieldsSometimes(rate, level, event, fields);
}

bool LogFieldsSometimes(LogRate* rate, LogLevel level, absl::string_view event,
                        std::vector<LogField> fields) {
  const std::optional<uint64_t> left_out = rate->Take(SteadyClock().Now());
  if (!left_out.has_value()) return false;
  if (*left_out > 0) fields.emplace_back("left_out", *left_out);
  LogFields(level, event, fields);
  return true;
}

}  // namespace hearth
