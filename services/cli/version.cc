#include "services/cli/version.h"

namespace hearth {

const char kVersion[] = HEARTH_VERSION;
const char kVersionText[] = HEARTH_VERSION "\ncommit " HEARTH_COMMIT;

}  // namespace hearth
