// Lists the restore points of a store, and finds them by shortened identifiers.
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

// Fewer digits are refused: they could match too much.
inline constexpr size_t kMinIdDigits = 6;

// The restore point that a command is about, as ResolveId takes it.
CLI::Option* AddPoint(CLI::App* command, std::string* id);

// Sets `tenant`, unless it is null, to the name of the tenant that an administrator is shown; for
// other callers it stays as it is.
absl::StatusOr<std::vector<v1::RestorePointInfo>> ListRestorePoints(v1::CacheStore::Stub* stub,
                                                                    const PeerFlags& store,
                                                                    std::string* tenant = nullptr);

// The 32 bytes that `text` names: 64 hexadecimal digits, or the first ones of exactly one restore
// point. kInvalidArgument, kNotFound.
absl::StatusOr<std::string> ResolveId(v1::CacheStore::Stub* stub, const PeerFlags& store,
                                      const std::string& text);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_RESTORE_POINTS_H_
