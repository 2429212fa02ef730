// The version that servers and hearthctl report; scripts/version.sh determines it when CMake runs.
#ifndef HEARTH_SERVICES_CLI_VERSION_H_
#define HEARTH_SERVICES_CLI_VERSION_H_

namespace hearth {

extern const char kVersion[];      // "1.2.0"; 3 commits after that release "1.2.0+3.g1a2b3c4d5e6f"
extern const char kVersionText[];  // the lines that --version prints: the version and the commit

}  // namespace hearth

#endif  // HEARTH_SERVICES_CLI_VERSION_H_
