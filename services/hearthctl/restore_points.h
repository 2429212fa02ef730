// Lists a store's restore points, and resolves shortened ids.
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

// Shorter prefixes are refused, because they could match many ids.
inline constexpr size_t kMinIdDigits = 6;

// Declares the argument "id" for ResolveId.
CLI::Option* AddPoint(CLI::App* command, std::string* id);

// Lists the restore points. If the caller is an administrator and `tenant` is not null, sets
// `tenant` to the tenant whose points are listed.
absl::StatusOr<std::vector<v1::RestorePointInfo>> ListRestorePoints(v1::CacheStore::Stub* stub,
                                                                    const PeerFlags& store,
                                                                    std::string* tenant = nullptr);

// Returns the 32 bytes of an id: `text` is 64 hexadecimal digits, or the first digits of exactly
// one stored restore point. Errors: kInvalidArgument, kNotFound.
absl::StatusOr<std::string> ResolveId(v1::CacheStore::Stub* stub, const PeerFlags& store,
                                      const std::string& text);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_RESTORE_POINTS_H_
