#include <csignal>
#include <iostream>

#include "services/hearthctl/cli.h"

int main(int argc, char** argv) {
  // A reader that goes away (`hearthctl ls | head`) ends a write with an error, not the process.
  std::signal(SIGPIPE, SIG_IGN);
  hearth::Console console{std::cin, std::cout, std::cerr};
  return hearth::RunHearthctl(argc, argv, console);
}
