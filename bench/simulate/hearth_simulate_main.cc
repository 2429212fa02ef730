#include "bench/simulate/simulate.h"
#include "services/cli/console.h"

int main(int argc, char** argv) {
  hearth::Console console = hearth::ProcessConsole("hearth-simulate");
  return hearth::RunSimulator(argc, argv, console);
}
