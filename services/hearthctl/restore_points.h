// Lists the restore points of a store, and completes shortened restore point ids.
//
// Thread safety: pure functions.
#ifndef HEARTH_SERVICES_HEARTHCTL_RESTORE_POINTS_H_
#define HEARTH_SERVICES_HEARTHCTL_RESTORE_POINTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cache_store.grpc.pb.h"
#include "services/cli/connection.h"

namespace hearth {

// Least number of hexadecimal digits of a shortened id: fewer digits could match many ids.
inline constexpr size_t kMinIdDigits = 6;

// Declares the positional argument "id", a restore point id that the command passes to ResolveId.
CLI::Option* AddPoint(CLI::App* command, std::string* id);

// Lists the restore points of a store. If the caller is an administrator and `tenant` is not null,
// stores in `*tenant` the tenant whose restore points are listed.
absl::StatusOr<std::vector<v1::RestorePointInfo>> ListRestorePoints(v1::CacheStore::Stub* stub,
                                                                    const PeerFlags& store,
                                                                    std::string* tenant = nullptr);

// Returns the 32 bytes of a restore point id. `text` is 64 hexadecimal digits, or the first digits
// of exactly one stored restore point's id. Errors: kInvalidArgument, kNotFound.
absl::StatusOr<std::string> ResolveId(v1::CacheStore::Stub* stub, const PeerFlags& store,
                                      const std::string& text);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_RESTORE_POINTS_H_
