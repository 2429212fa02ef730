#include "services/cli/connection.h"
#include "services/events/events_program.h"

int main(int argc, char** argv) {
  hearth::KeepLibrariesQuiet();
  hearth::Console console = hearth::ProcessConsole("hearth-events");
  return hearth::RunEventsProgram(argc, argv, console);
}
