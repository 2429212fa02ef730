// Console: the streams that a command reads and writes, and the exit codes of the programs.
//
// Exit codes: 0 success; 1 failure; 2 wrong command line, or a wrong value in it; 3 no connection
// to the server (not for a server that answers UNAVAILABLE); 130 interrupted. For each exit code
// except 0, `err` gets one line that says what failed, where, and what to do.
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

// An output stream that writes to another stream and escapes control characters ("\x1b"), so that
// text from a server, a model or a file cannot control the terminal. Escapes C0 characters except
// newline and tab, DEL, C1 characters, and marks of bidirectional text. If the bytes of a UTF-8
// character arrive in pieces, writes the character once it is complete.
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

    std::string held;  // the first bytes of an incomplete UTF-8 character
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

// Text that SafeStream writes without escapes: control sequences of this program, and output for
// other programs.
struct Raw {
  absl::string_view text;
};
std::ostream& operator<<(std::ostream& out, const Raw& raw);

struct Console {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  const char* program = "hearthctl";
  bool terminal = false;  // whether `in` and `out` are a terminal that understands escape sequences
  // whether `out` is a terminal that understands escape sequences, and NO_COLOR is unset
  bool color = false;
  bool progress = false;  // whether `err` is a terminal that understands escape sequences
  bool shown = false;     // whether `out` is a terminal, with or without escape sequences
};

// Returns this process's console, and ignores SIGPIPE: if the reader of the output goes away
// (`hearthctl ls | head`), writes fail but the process continues.
Console ProcessConsole(const char* program);

// Runs a program with SafeStreams. If writing the output failed, prints the reason and returns
// kExitFailed. Prints no reason if the reader of a pipe closed it.
int RunSafely(Console& outside, const std::function<int(Console&)>& run);

// Returns the error with `subject` and a colon before its message.
absl::Status About(const std::string& subject, const absl::Status& status);

// Returns a kUnavailable error that Fail maps to exit code 3: no connection to the server.
absl::Status NotReached(const std::string& message);

// Prints the error in one line. Returns kExitUsage for kInvalidArgument, kExitUnreachable for an
// error of NotReached, else kExitFailed. If writing the output failed, prints nothing, because
// RunSafely reports it.
int Fail(Console& console, const absl::Status& status);
int FailUsage(Console& console, const std::string& message);

// Prints text of a model: escaped for a terminal, unchanged for a file or a pipe. Returns false if
// writing failed; the caller should then stop generating.
bool PrintAnswer(absl::string_view text, Console& console);

}  // namespace hearth

#endif  // HEARTH_SERVICES_CLI_CONSOLE_H_
