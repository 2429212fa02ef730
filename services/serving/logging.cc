#include "services/serving/logging.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "cache_store/base/clock.h"
#include "services/serving/json_value.h"

namespace hearth {
namespace {

LogLevel least_level = LogLevel::kInfo;
LogFormat log_format = LogFormat::kText;

const char* LevelName(LogLevel level) {
  constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
  static_assert(std::size(kNames) == static_cast<size_t>(LogLevel::kError) + 1,
                "each level needs a name");
  return kNames[static_cast<int>(level)];
}

std::string TimeNow() {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
}

// Returns the text of a value, with quotes if a person, or a program that splits at spaces, would
// misread it.
std::string TextValue(const std::string& value) {
  const bool plain = !value.empty() && value.find_first_of(" \"=\n\t\\") == std::string::npos;
  return plain ? value : absl::StrCat("\"", absl::Utf8SafeCEscape(value), "\"");
}

// Returns the number in a field's text as JSON; null if JSON cannot represent it.
Json NumberOf(const std::string& text) {
  const Json number = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return number.is_discarded() ? Json() : number;
}

// gRPC's own log lines name sockets and source files, so only its errors are logged, and those at
// debug. A failed TLS handshake is logged as a warning, as nothing else reports it.
void LogGrpc(gpr_log_func_args* line) {
  static LogRate& rate = *new LogRate();
  const std::string failure = HandshakeFailure(line->file, line->message);
  if (!failure.empty()) {
    LogSometimes(&rate, LogLevel::kWarning, "TLS handshake failed", {{"reason", failure}});
    return;
  }
  if (line->severity != GPR_LOG_SEVERITY_ERROR) return;
  Log(LogLevel::kDebug, "grpc", {{"message", line->message}, {"file", line->file}});
}

// Protobuf logs messages that it cannot parse. A caller may send any number of them.
void LogProtobuf(google::protobuf::LogLevel level, const char* file, int line,
                 const std::string& message) {
  static LogRate& rate = *new LogRate();
  const bool is_error = level >= google::protobuf::LOGLEVEL_ERROR;
  LogSometimes(&rate, is_error ? LogLevel::kWarning : LogLevel::kDebug, "protobuf",
               {{"message", message}, {"file", absl::StrCat(file, ":", line)}});
}

}  // namespace

void SetUpLogging(LogLevel level, LogFormat format) {
  least_level = level;
  log_format = format;
  gpr_set_log_function(&LogGrpc);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_DEBUG);  // gRPC logs failed handshakes at this level
  google::protobuf::SetLogHandler(&LogProtobuf);
}

std::string HandshakeFailure(absl::string_view file, absl::string_view message) {
  // gRPC writes the first text if TLS has a reason, and the second text also if the client just
  // closes.
  for (const auto& [where, what] :
       {std::pair<const char*, const char*>{"ssl_transport_security.cc",
                                            "Handshake failed with fatal error "},
        {"chttp2_server.cc", "Handshaking failed: "}}) {
    if (absl::EndsWith(file, where) && absl::ConsumePrefix(&message, what)) {
      return std::string(message);
    }
  }
  return "";
}

std::string FormatText(absl::string_view event, const std::vector<LogField>& fields) {
  std::string line(event);
  for (const LogField& field : fields) {
    absl::StrAppend(&line, " ", field.name, "=", TextValue(field.value));
  }
  return line;
}

std::string FormatJson(absl::string_view time, absl::string_view level, absl::string_view event,
                       const std::vector<LogField>& fields) {
  Json line;
  line["time"] = time;
  line["level"] = level;
  line["event"] = event;
  for (const LogField& field : fields) {
    line[field.name] = field.is_number ? NumberOf(field.value) : Json(field.value);
  }
  return JsonLine(line);
}

void LogWarnings(const std::vector<std::string>& events) {
  for (const std::string& event : events) Log(LogLevel::kWarning, event);
}

bool Logs(LogLevel level) { return level >= least_level; }

void Log(LogLevel level, absl::string_view event, const std::vector<LogField>& fields) {
  if (!Logs(level)) return;
  std::string line =
      log_format == LogFormat::kJson
          ? FormatJson(TimeNow(), LevelName(level), event, fields)
          : absl::StrCat(TimeNow(), " ", LevelName(level), " ", FormatText(event, fields));
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);  // stderr is unbuffered, so this is one write
}

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
                  std::vector<LogField> fields) {
  const std::optional<uint64_t> left_out = rate->Take(SteadyClock().Now());
  if (!left_out.has_value()) return false;
  if (*left_out > 0) fields.emplace_back("left_out", *left_out);
  Log(level, event, fields);
  return true;
}

}  // namespace hearth
