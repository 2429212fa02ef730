// Structured log lines on stderr: a time, a level, an event in words, and fields.
//
//   2026-01-31T12:00:00.123Z info ready address=127.0.0.1:7080 took_ms=41
//   {"time":"2026-01-31T12:00:00.123Z","level":"info","event":"ready","address":"127.0.0.1:7080"}
// Only services/ logs. Thread safety: Log from any thread; SetUpLogging once, before threads start.
#ifndef HEARTH_SERVICES_SERVING_LOGGING_H_
#define HEARTH_SERVICES_SERVING_LOGGING_H_

#include <cassert>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace hearth {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

struct LogField {
  LogField(absl::string_view field_name, absl::string_view text)
      : name(field_name), value(text), is_number(false) {}
  template <typename Number, typename = std::enable_if_t<std::is_arithmetic_v<Number>>>
  LogField(absl::string_view field_name, Number number)
      : name(field_name), value(std::to_string(number)), is_number(true) {}

  std::string name;
  std::string value;
  bool is_number;
};

void SetUpLogging(LogLevel level, LogFormat format);
void Log(LogLevel level, absl::string_view event, const std::vector<LogField>& fields = {});
bool Logs(LogLevel level);  // whether lines of this level are written
// Logs one warning for each event, without fields.
void LogWarnings(const std::vector<std::string>& events);

// Returns why a TLS handshake failed, from gRPC's log line about it; empty for other lines.
std::string HandshakeFailure(absl::string_view file, absl::string_view message);

// Returns a line without time and level; quotes values that need it.
std::string FormatText(absl::string_view event, const std::vector<LogField>& fields);
std::string FormatJson(absl::string_view time, absl::string_view level, absl::string_view event,
                       const std::vector<LogField>& fields);

// LogRate: limits how often one kind of line is logged, so that a caller cannot fill the disk.
//
// Thread safety: all methods from any thread.
class LogRate {
 public:
  // Allows `at_once` lines without a pause, and one more line per `every`.
  explicit LogRate(absl::Duration every = absl::Seconds(10), int at_once = 5)
      : every_(every), at_once_(at_once) {
    assert(every > absl::ZeroDuration() && at_once >= 1);
  }

  // Returns nullopt if no line may be logged now; else the number of lines that were omitted since
  // the last line.
  std::optional<uint64_t> Take(absl::Time now);

 private:
  const absl::Duration every_;
  const int at_once_;
  absl::Mutex mutex_;
  absl::Time full_ ABSL_GUARDED_BY(mutex_) =
      absl::InfinitePast();  // time at which `at_once` lines are allowed again
  uint64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Logs a line if `rate` allows it, with the number of omitted lines as `left_out`. Returns false if
// the line was omitted.
bool LogSometimes(LogRate* rate, LogLevel level, absl::string_view event,
                  std::vector<LogField> fields);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_LOGGING_H_
