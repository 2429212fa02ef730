// Runs hearthctl: parses the command line, runs one subcommand, returns the exit code.
//
// Thread safety: none.
#ifndef HEARTH_SERVICES_HEARTHCTL_CLI_H_
#define HEARTH_SERVICES_HEARTHCTL_CLI_H_

#include "services/cli/console.h"

namespace hearth {

int RunHearthctl(int argc, const char* const* argv, Console& outside);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_CLI_H_
