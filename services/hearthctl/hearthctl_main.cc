#include <unistd.h>

#include <csignal>

#include "services/cli/connection.h"
#include "services/hearthctl/cli.h"

namespace {

// If Ctrl-C stopped an answer in the middle of a line, ends the line, so that the shell's prompt
// starts a new line. Ends the process by the signal, as shells and scripts expect.
void EndLineAndRaise(int signal) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    if (isatty(stream) == 1 && write(stream, "\n", 1) == 1) break;
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGINT, EndLineAndRaise);
  hearth::KeepLibrariesQuiet();
  hearth::Console console = hearth::ProcessConsole("hearthctl");
  return hearth::RunHearthctl(argc, argv, console);
}
