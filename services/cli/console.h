// Console: the streams that a command reads and writes, and its exit codes.
//
// Exit codes: 0 done; 1 failed; 2 the command line, or a value in it, was wrong; 3 the server was
// not reached, where one that answers that it is unavailable was; 130 interrupted. All but 0 come
// with one line on `err`: what, where, what to do.
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
inline constexpr int kExitInterrupted = 130;  // as shells have it: 128 + SIGINT

// A stream in front of another, that shows control characters as text ("\x1b"), so that nothing
// from a server, a model or a file steers a terminal: C0 but newline and tab, DEL, C1 and the marks
// of bidirectional text. A character that comes in pieces is written once it is whole.
class SafeStream final : public std::ostream {
 public:
  explicit SafeStream(std::ostream* to) : std::ostream(nullptr), buffer_(to->rdbuf()) {
    rdbuf(&buffer_);
  }
  ~SafeStream() override { WriteRaw(buffer_.held); }

  void WriteRaw(absl::string_view text) {
    if (!buffer_.Write(text)) setstate(badbit);
  }
  // The errno of the first write that failed; 0: none did.
  int error() const { return buffer_.error; }

 private:
  class Buffer final : public std::streambuf {
   public:
    explicit Buffer(std::streambuf* to) : to_(to) {}
    bool Write(absl::string_view text);

    std::string held;  // of a character that is not whole yet
    int error = 0;

   protected:
    int_type overflow(int_type character) override;
    std::streamsize xsputn(const char* text, std::streamsize size) override;
    int sync() override;

   private:
    // Appends what is shown of `text`.
    void Show(absl::string_view text, std::string* shown);
    bool Succeeds(bool written);

    std::streambuf* const to_;
  };

  Buffer buffer_;
};

// Text that is written as it is: our own control sequences, and what programs read.
struct Raw {
  absl::string_view text;
};
std::ostream& operator<<(std::ostream& out, const Raw& raw);

struct Console {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  const char* program = "hearthctl";
  bool terminal = false;  // a person types at `in` and reads `out`
  bool color = false;     // `out` takes escape sequences
  bool progress = false;  // `err` takes them, and a person reads it
  bool shown = false;     // `out` is a terminal, of whatever kind
};

// This process's. From then on a reader that goes away (`hearthctl ls | head`) ends a write with an
// error, not the process.
Console ProcessConsole(const char* program);

// Runs a program with streams that are safe. Where its output was lost it fails and says so; not
// where nobody reads it any more.
int RunSafely(Console& outside, const std::function<int(Console&)>& run);

// The same error, with `subject` in front of its message.
absl::Status About(const std::string& subject, const absl::Status& status);

// kUnavailable, of a server that could not be connected to.
absl::Status NotReached(const std::string& message);

// Prints one line and returns the exit code: of kInvalidArgument kExitUsage, of NotReached
// kExitUnreachable. Where output was lost RunSafely says so, and this says nothing.
int Fail(Console& console, const absl::Status& status);
int FailUsage(Console& console, const std::string& message);

// Text of a model: as it is into files and pipes. False: it cannot be written, and no more need be
// generated.
bool PrintAnswer(absl::string_view text, Console& console);

}  // namespace hearth

#endif  // HEARTH_SERVICES_CLI_CONSOLE_H_
