#include "services/serving/calls/call_log.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/serving/logging.h"

namespace hearth {
namespace {

bool Computes(absl::string_view method) { return method == "Generate" || method == "Prefill"; }

// Each request of an identified caller has a line at `info`, and so has each call that belongs to a
// trace that the caller records.
bool IsReported(const CallRecord& record) {
  return !record.note.tenant.empty() && (Computes(record.method) || record.note.span.is_sampled);
}

std::vector<LogField> FieldsOf(const CallRecord& record) {
  const CallNote& note = record.note;
  std::vector<LogField> fields = {{"method", record.method},
                                  {"id", note.request_id},
                                  {"code", absl::StatusCodeToString(record.code)},
                                  {"took_ms", record.seconds * 1e3}};
  if (!note.span.trace_id.empty()) {
    fields.emplace_back("trace_id", note.span.trace_id);
    fields.emplace_back("span_id", note.span.span_id);
  }
  if (!note.span.parent_id.empty()) fields.emplace_back("parent_span_id", note.span.parent_id);
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
  }
  const CallTimes& times = note.times;
  if (times.until_now > 0) {
    const double took_ms = record.seconds * 1e3, lookup_ms = std::min(times.lookup, times.fetch);
    for (const auto& [name, ms] : {std::pair<const char*, double>{"prompt_ms", times.prompt},
                                   {"queue_ms", times.queue},
                                   {"lookup_ms", lookup_ms},
                                   {"load_ms", times.fetch - lookup_ms},
                                   {"prefill_ms", times.prefill},
                                   {"decode_ms", times.decode},
                                   {"publish_ms", times.publish + took_ms - times.until_now}}) {
      fields.emplace_back(name, ms);
    }
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
  const auto slow = std::make_shared<LogRate>(), refused = std::make_shared<LogRate>();
  return [metrics, slow, refused](const CallRecord& record) {
    metrics->RecordCall(record.method, record.code, record.seconds);
    const bool is_slow = IsSlow(record);
    const LogLevel level = is_slow ? LogLevel::kWarning : LogLevel::kInfo;
    if (IsReported(record)) {
      const char* const event = is_slow ? "slow" : "call";
      // A request that is refused before any work costs its caller nothing.
      if (record.note.tokens == 0 && !Logs(LogLevel::kDebug)) {
        LogSometimes(refused.get(), level, event, FieldsOf(record));
      } else if (Logs(level)) {
        Log(level, event, FieldsOf(record));
      }
    } else if (is_slow) {
      LogSometimes(slow.get(), level, "slow", FieldsOf(record));
    } else if (Logs(LogLevel::kDebug)) {
      Log(LogLevel::kDebug, "call", FieldsOf(record));
    }
  };
}

}  // namespace hearth
