// hearth-events: tells routers which prefixes a store has, in the events that vLLM publishes.
#ifndef HEARTH_SERVICES_EVENTS_EVENTS_PROGRAM_H_
#define HEARTH_SERVICES_EVENTS_EVENTS_PROGRAM_H_

#include "services/cli/console.h"

namespace hearth {

// Parses the command line, runs until a signal, returns the exit code.
int RunEventsProgram(int argc, const char* const* argv, Console& outside);

}  // namespace hearth

#endif  // HEARTH_SERVICES_EVENTS_EVENTS_PROGRAM_H_
