// Reads the records of a data folder, to open a store or to verify the folder offline. Private to
// disk/.
#ifndef HEARTH_CACHE_STORE_DISK_DISK_TIER_LOAD_H_
#define HEARTH_CACHE_STORE_DISK_DISK_TIER_LOAD_H_

#include <string>

#include "absl/status/statusor.h"
#include "cache_store/disk/disk_tier.h"
#include "cache_store/disk/disk_tier_db.h"

namespace hearth {

// Returns the record's key: the digest of the fingerprint, then the tenant.
std::string FingerprintKey(const FingerprintRecord& record);
std::string PinKey(uint64_t manifest);
std::string UseKey(uint64_t manifest);
// Returns kFailedPrecondition if `version` is not the format version of this program.
absl::Status CheckVersion(const std::string& dir, const std::string& version);

// In a new data folder, writes the format version and the digest of the secret; otherwise compares
// them. kFailedPrecondition: another version or secret.
absl::Status CheckMeta(const Database& db, const std::string& dir, const std::string& secret_check,
                       DamageConfirmation confirmation);

// Reads all records, but only the numbers of manifests, and no slices. Restore points that are in
// the saved count (`noted`) but missing are damage; exception: the machine was restarted since, and
// all other data is intact. kDataLoss: the records are unreadable, or older than an acknowledged
// drop. kUnavailable: each read gives another result. If `confirmation` is null, reads only once.
absl::StatusOr<DiskContents> LoadContents(const Database& db, const PointCount::Noted& noted,
                                          BootId boot, DamageConfirmation* confirmation);
// Implements DiskTier::ReadManifests.
absl::StatusOr<std::vector<std::optional<ManifestRecord>>> LoadManifests(
    const Database& db, absl::Span<const uint64_t> numbers);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_LOAD_H_
