#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "services/hearthctl/cli.h"

namespace {

// hearthctl reports failures itself, in one line. gRPC's own log lines, which name its sockets and
// source files, come only where its variable asks for them.
void KeepToOneLine() {
  google::protobuf::SetLogHandler(nullptr);
  if (std::getenv("GRPC_VERBOSITY") != nullptr) return;
  gpr_set_log_function([](gpr_log_func_args*) {});
}

// Ctrl-C ends an answer in the middle of a line; the shell's prompt begins a new one. The exit is
// that of the signal, as shells and scripts expect it.
void EndLineAndDie(int signal) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    if (isatty(stream) == 1 && write(stream, "\n", 1) == 1) break;
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// Whether the environment's variable is `value`; empty: or is not there.
bool Says(const char* variable, const char* value) {
  const char* const text = std::getenv(variable);
  return std::strcmp(text == nullptr ? "" : text, value) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  // A reader that goes away (`hearthctl ls | head`) ends a write with an error, not the process.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGINT, EndLineAndDie);
  KeepToOneLine();
  hearth::Console console{std::cin, std::cout, std::cerr};
  const bool takes_escapes = !Says("TERM", "dumb") && !Says("TERM", "");
  console.shown = isatty(STDOUT_FILENO) == 1;
  const bool shows = console.shown && takes_escapes;
  console.terminal = shows && isatty(STDIN_FILENO) == 1;
  console.color = shows && Says("NO_COLOR", "");
  console.progress = isatty(STDERR_FILENO) == 1 && takes_escapes;
  return hearth::RunHearthctl(argc, argv, console);
}
