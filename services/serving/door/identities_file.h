// Parses the text of --identities-file (docs/operations.md has the format).
//
// Thread safety: a pure function.
#ifndef HEARTH_SERVICES_SERVING_DOOR_IDENTITIES_FILE_H_
#define HEARTH_SERVICES_SERVING_DOOR_IDENTITIES_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/serving/door/identity.h"

namespace hearth {

// kInvalidArgument names `file`, the entry and what to do.
absl::StatusOr<std::vector<IdentityEntry>> ParseIdentities(const std::string& file,
                                                           const std::string& text);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_DOOR_IDENTITIES_FILE_H_
