// The offline check of a store's data folder, as a command's output and exit code.
//
// Thread safety: none.
#ifndef HEARTH_SERVICES_HEARTHCTL_DATA_DIR_CHECK_H_
#define HEARTH_SERVICES_HEARTHCTL_DATA_DIR_CHECK_H_

#include <string>

#include "services/hearthctl/console.h"

namespace hearth {

int CheckDataDir(const std::string& dir, bool json, Console& console);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_DATA_DIR_CHECK_H_
