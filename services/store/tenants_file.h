// Reads the file of --tenants-file: the quotas of tenants.
//
//   {"default": {"max_bytes": "10GiB"},
//    "tenants": {"team-b": {"max_bytes": "50GiB", "max_objects": 100000,
//                           "max_pinned_bytes": "5GiB", "floor_bytes": "10GiB"}}}
// Thread safety: a function.
#ifndef HEARTH_SERVICES_STORE_TENANTS_FILE_H_
#define HEARTH_SERVICES_STORE_TENANTS_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "cache_store/base/tenant_accounts.h"

namespace hearth {

// Returns the quotas; none if `path` is empty. An error names the file and the key.
absl::StatusOr<TenantQuotas> ReadTenantsFile(const std::string& path);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_TENANTS_FILE_H_
