#include "services/serving/calls/call_log.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/serving/logging.h"

namespace hearth {
namespace {

bool Computes(absl::string_view method) { return method == "Generate" || method == "Prefill"; }

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
  if (note.generated > 0) fields.emplace_back("generated", note.generated);
  if (!note.tier.empty()) fields.emplace_back("tier", note.tier);
  if (!note.load.empty()) {
    fields.emplace_back("load", note.load);
    if (note.load_estimate_ms >= 0) fields.emplace_back("load_estimate_ms", note.load_estimate_ms);
    if (note.compute_estimate_ms >= 0) {
      fields.emplace_back("compute_estimate_ms", note.compute_estimate_ms);
    }
    if (note.load_ms > 0) fields.emplace_back("load_ms", note.load_ms);
  }
  return fields;
}

}  // namespace

bool IsSlow(const CallRecord& record) {
  double allowed_s = kSlowCallSeconds;
  if (Computes(record.method)) {
    const CallNote& note = record.note;
    const uint64_t computed = note.tokens - std::min(note.tokens, note.hit_tokens);
    allowed_s += kSlowPromptTokenSeconds * static_cast<double>(computed) +
                 kSlowNewTokenSeconds * static_cast<double>(note.generated);
  }
  return record.seconds > allowed_s;
}

Admission::Recorder RecordCalls(Metrics* metrics) {
  const auto rate = std::make_shared<LogRate>();
  return [metrics, rate](const CallRecord& record) {
    metrics->RecordCall(record.method, record.code, record.seconds);
    if (IsSlow(record)) {
      LogSometimes(rate.get(), LogLevel::kWarning, "slow", FieldsOf(record));
      return;
    }
    if (Logs(LogLevel::kDebug)) Log(LogLevel::kDebug, "call", FieldsOf(record));
  };
}

}  // namespace hearth
