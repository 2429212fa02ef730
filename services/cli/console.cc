#include "services/cli/console.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/utf8.h"

namespace hearth {
namespace {

size_t LengthOf(uint8_t lead) {
  if (lead < 0xc0) return 1;  // ASCII, or a byte that cannot start a UTF-8 character
  if (lead < 0xe0) return 2;
  return lead < 0xf0 ? 3 : 4;
}

bool IsControl(uint32_t code) {
  if (code < 0x20) return code != '\n' && code != '\t';
  return (code >= 0x7f && code < 0xa0) || code == 0x61c || code == 0x200e || code == 0x200f ||
         (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

constexpr char kNotReached[] = "hearth.NotReached";

// Returns "CODE_NAME: message", with line ends replaced.
std::string OneLine(const absl::Status& status) {
  std::string line = absl::StatusCodeToString(status.code());
  line += ": ";
  line += std::string(status.message());
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

// Returns whether the environment variable has this value. An unset variable counts as "".
bool Says(const char* variable, const char* value) {
  const char* const text = std::getenv(variable);
  return std::strcmp(text == nullptr ? "" : text, value) == 0;
}

}  // namespace

Console ProcessConsole(const char* program) {
  std::signal(SIGPIPE, SIG_IGN);
  Console console{std::cin, std::cout, std::cerr, program};
  const bool takes_escapes = !Says("TERM", "dumb") && !Says("TERM", "");
  console.shown = isatty(STDOUT_FILENO) == 1;
  console.terminal = console.shown && takes_escapes && isatty(STDIN_FILENO) == 1;
  console.color = console.shown && takes_escapes && Says("NO_COLOR", "");
  console.progress = isatty(STDERR_FILENO) == 1 && takes_escapes;
  return console;
}

int RunSafely(Console& outside, const std::function<int(Console&)>& run) {
  SafeStream out(&outside.out), err(&outside.err);
  Console console{
      outside.in,       out,          err, outside.program, outside.terminal, outside.color,
      outside.progress, outside.shown};
  const int code = run(console);
  if (out.flush()) return code;
  if (out.error() != EPIPE) {
    err << outside.program << ": cannot write the output: " << std::strerror(out.error())
        << std::endl;
  }
  return code == kExitOk ? kExitFailed : code;
}

void SafeStream::Buffer::Show(absl::string_view text, std::string* shown) {
  for (const char c : text) {
    const bool goes_on = (static_cast<uint8_t>(c) & 0xc0) == 0x80;
    // the bytes in `held` were not a UTF-8 character
    if (!held.empty() && !goes_on) *shown += std::exchange(held, "");
    held += c;
    if (held.size() < LengthOf(static_cast<uint8_t>(held[0]))) continue;
    const uint32_t code =
        held.size() == 1 ? static_cast<uint8_t>(held[0]) : CharacterAt(held, 0).code;
    if (IsControl(code)) {
      *shown += code < 0x100 ? absl::StrFormat("\\x%02x", code) : absl::StrFormat("\\u%04x", code);
    } else {
      *shown += held;
    }
    held.clear();
  }
}

bool SafeStream::Buffer::Succeeds(bool written) {
  if (!written && error == 0) error = errno == 0 ? EIO : errno;
  return written;
}

bool SafeStream::Buffer::Write(absl::string_view text) {
  errno = 0;
  const auto size = static_cast<std::streamsize>(text.size());
  return Succeeds(to_->sputn(text.data(), size) == size);
}

SafeStream::Buffer::int_type SafeStream::Buffer::overflow(int_type character) {
  const char c = traits_type::to_char_type(character);
  return xsputn(&c, 1) == 1 ? character : traits_type::eof();
}

std::streamsize SafeStream::Buffer::xsputn(const char* text, std::streamsize size) {
  std::string shown;
  Show({text, static_cast<size_t>(size)}, &shown);
  return Write(shown) ? size : 0;
}

int SafeStream::Buffer::sync() {
  errno = 0;
  return Succeeds(to_->pubsync() == 0) ? 0 : -1;
}

std::ostream& operator<<(std::ostream& out, const Raw& raw) {
  if (auto* const safe = dynamic_cast<SafeStream*>(&out)) {
    safe->WriteRaw(raw.text);
    return out;
  }
  return out << raw.text;
}

absl::Status About(const std::string& subject, const absl::Status& status) {
  absl::Status about(status.code(), absl::StrCat(subject, ": ", status.message()));
  if (status.GetPayload(kNotReached).has_value()) about.SetPayload(kNotReached, absl::Cord());
  return about;
}

absl::Status NotReached(const std::string& message) {
  absl::Status status = absl::UnavailableError(message);
  status.SetPayload(kNotReached, absl::Cord());
  return status;
}

int Fail(Console& console, const absl::Status& status) {
  if (!console.out.flush()) return kExitFailed;
  console.err << console.program << ": " << OneLine(status) << std::endl;
  if (absl::IsInvalidArgument(status)) return kExitUsage;
  return status.GetPayload(kNotReached).has_value() ? kExitUnreachable : kExitFailed;
}

int FailUsage(Console& console, const std::string& message) {
  console.err << console.program << ": " << message << " (--help shows examples)" << std::endl;
  return kExitUsage;
}

bool PrintAnswer(absl::string_view text, Console& console) {
  if (console.shown) {
    console.out << text << std::flush;
  } else {
    console.out << Raw{text} << std::flush;
  }
  return console.out.good();
}

}  // namespace hearth
