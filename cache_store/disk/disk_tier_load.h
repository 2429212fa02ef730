// Reads a data folder's records, for opening and for offline verification. Private to disk/.
#ifndef HEARTH_CACHE_STORE_DISK_DISK_TIER_LOAD_H_
#define HEARTH_CACHE_STORE_DISK_DISK_TIER_LOAD_H_

#include <string>

#include "absl/status/statusor.h"
#include "cache_store/disk/disk_tier.h"
#include "cache_store/disk/disk_tier_db.h"

namespace hearth {

// The key: fingerprint digest, then tenant.
std::string FingerprintKey(const FingerprintRecord& record);
std::string PinKey(uint64_t manifest);
std::string UseKey(uint64_t manifest);
// kFailedPrecondition: `version` is not this program's.
absl::Status CheckVersion(const std::string& dir, const std::string& version);

// In a new folder writes the format version and the secret's check; otherwise compares them.
// kFailedPrecondition: another version or secret.
absl::Status CheckMeta(const Database& db, const std::string& dir, const std::string& secret_check,
                       DamageConfirmation confirmation);

// Reads everything except slice bytes; for manifests only their numbers. Points that are `noted`
// but missing are damage, unless another boot of the machine noted them and all other data is
// intact. kDataLoss: unreadable, or older than an acknowledged drop. kUnavailable: each read gives
// another result. With a null `confirmation` reads once.
absl::StatusOr<DiskContents> LoadContents(const Database& db, const PointCount::Noted& noted,
                                          BootId boot, DamageConfirmation* confirmation);
// See DiskTier::ReadManifests.
absl::StatusOr<std::vector<std::optional<ManifestRecord>>> LoadManifests(
    const Database& db, absl::Span<const uint64_t> numbers);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_LOAD_H_
