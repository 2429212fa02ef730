#include "services/call_log.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/log_rate.h"
#include "services/logging.h"

namespace hearth {
namespace {

bool TakesItsTime(absl::string_view method) {
  return method == "Watch" || method == "Lease" || method == "Generate" || method == "Prefill";
}

std::vector<LogField> FieldsOf(const CallRecord& record) {
  const CallNote& note = record.note;
  std::vector<LogField> fields = {{"method", record.method},
                                  {"id", note.request_id},
                                  {"code", absl::StatusCodeToString(record.code)},
                                  {"took_ms", record.seconds * 1e3}};
  if (!note.tenant.empty()) fields.emplace_back("tenant", note.tenant);
  if (note.tokens > 0) {
    fields.emplace_back("tokens", note.tokens);
    fields.emplace_back("hit_tokens", note.hit_tokens);
  }
  if (!note.tier.empty()) fields.emplace_back("tier", note.tier);
  return fields;
}

}  // namespace

CallGate::Recorder RecordCalls(Metrics* metrics) {
  const auto rate = std::make_shared<LogRate>();
  return [metrics, rate](const CallRecord& record) {
    metrics->RecordCall(record.method, record.code, record.seconds);
    const bool is_slow = record.seconds > kSlowCallSeconds && !TakesItsTime(record.method);
    if (is_slow)
      return LogFieldsSometimes(rate.get(), LogLevel::kWarning, "slow", FieldsOf(record));
    if (Logs(LogLevel::kDebug)) LogFields(LogLevel::kDebug, "call", FieldsOf(record));
  };
}

}  // namespace hearth
