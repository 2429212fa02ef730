// Reading a data folder's records, for opening and for offline verification.
// Private to disk/.
#ifndef HEARTH_CACHE_STORE_DISK_DISK_TIER_LOAD_H_
#define HEARTH_CACHE_STORE_DISK_DISK_TIER_LOAD_H_

#include <string>

#include "absl/status/statusor.h"
#include "cache_store/disk/disk_tier.h"
#include "cache_store/disk/disk_tier_db.h"

namespace hearth {

// Fingerprint digest, then tenant.
std::string FingerprintKey(const FingerprintRecord& record);
std::string PinKey(uint64_t manifest);
std::string UseKey(uint64_t manifest);
// kFailedPrecondition when `version` is not this program's.
absl::Status CheckVersion(const std::string& dir, const std::string& version);

// Writes this format's version and the secret's check into a new folder, else compares them.
// kFailedPrecondition: another version, or another secret.
absl::Status CheckMeta(const Database& db, const std::string& dir, const std::string& secret_check,
                       DamageConfirmation confirmation);

// Everything but the bytes of slices; of manifests only their objects' numbers. What was `noted`
// and is not there is damage, unless another boot of the machine noted it and all else is whole.
// kDataLoss: it cannot be read, or is from before a drop that was answered. kUnavailable: it reads
// differently each time. `confirmation` may be null: it is read once.
absl::StatusOr<DiskContents> LoadContents(const Database& db, const PointCount::Noted& noted,
                                          BootId boot, DamageConfirmation* confirmation);
// As DiskTier::ReadManifests.
absl::StatusOr<std::vector<std::optional<ManifestRecord>>> LoadManifests(
    const Database& db, absl::Span<const uint64_t> numbers);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_LOAD_H_
