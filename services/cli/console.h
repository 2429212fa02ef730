// Console: the streams that a command reads and writes, and the exit codes.
//
// Exit codes: 0 success; 1 failure; 2 wrong command line or wrong value in it; 3 the server was not
// reached (a server that answers UNAVAILABLE was reached); 130 interrupted. Each code but 0 comes
// with one line on `err`: what failed, where, and what to do.
// While a command runs, `out` and `err` are SafeStreams.
// Thread safety: none. Ownership: borrows the streams.
#ifndef HEARTH_SERVICES_CLI_CONSOLE_H_
#define HEARTH_SERVICES_CLI_CONSOLE_H_

#include <functional>
#include <ostream>
#include <streambuf>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace hearth {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitUnreachable = 3;
inline constexpr int kExitInterrupted = 130;  // as in shells: 128 + SIGINT

// A stream that writes to another and escapes control characters ("\x1b"), so that text from a
// server, a model or a file cannot control a terminal. Escapes C0 except newline and tab, DEL, C1,
// and the marks of bidirectional text. If a character arrives in pieces, it is written once
// complete.
class SafeStream final : public std::ostream {
 public:
  explicit SafeStream(std::ostream* to) : std::ostream(nullptr), buffer_(to->rdbuf()) {
    rdbuf(&buffer_);
  }
  ~SafeStream() override { WriteRaw(buffer_.held); }

  void WriteRaw(absl::string_view text) {
    if (!buffer_.Write(text)) setstate(badbit);
  }
  // errno of the first failed write; 0: no write failed.
  int error() const { return buffer_.error; }

 private:
  class Buffer final : public std::streambuf {
   public:
    explicit Buffer(std::streambuf* to) : to_(to) {}
    bool Write(absl::string_view text);

    std::string held;  // bytes of an incomplete character
    int error = 0;

   protected:
    int_type overflow(int_type character) override;
    std::streamsize xsputn(const char* text, std::streamsize size) override;
    int sync() override;

   private:
    // Appends `text` with control characters escaped.
    void Show(absl::string_view text, std::string* shown);
    bool Succeeds(bool written);

    std::streambuf* const to_;
  };

  Buffer buffer_;
};

// Text that SafeStream does not escape: our own control sequences, and output for programs.
struct Raw {
  absl::string_view text;
};
std::ostream& operator<<(std::ostream& out, const Raw& raw);

struct Console {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  const char* program = "hearthctl";
  bool terminal = false;  // `in` and `out` are a terminal that understands escape sequences
  bool color = false;     // the same for `out` alone, and NO_COLOR is unset
  bool progress = false;  // `err` is a terminal that understands escape sequences
  bool shown = false;     // `out` is a terminal, of any kind
};

// Returns this process's console, and ignores SIGPIPE: if the reader of the output goes away
// (`hearthctl ls | head`), writes fail but the process continues.
Console ProcessConsole(const char* program);

// Runs a program with SafeStreams. If output was lost, returns a failure and prints why; prints
// nothing if the reader closed the pipe.
int RunSafely(Console& outside, const std::function<int(Console&)>& run);

// Returns the error with `subject` before its message.
absl::Status About(const std::string& subject, const absl::Status& status);

// Returns kUnavailable, marked as "could not connect to the server".
absl::Status NotReached(const std::string& message);

// Prints the error in one line. Returns kExitUsage for kInvalidArgument, kExitUnreachable for
// NotReached, else kExitFailed. If output was lost, prints nothing, because RunSafely reports it.
int Fail(Console& console, const absl::Status& status);
int FailUsage(Console& console, const std::string& message);

// Prints text of a model; files and pipes get it without escapes. Returns false if writing failed:
// the caller should stop generating.
bool PrintAnswer(absl::string_view text, Console& console);

}  // namespace hearth

#endif  // HEARTH_SERVICES_CLI_CONSOLE_H_
