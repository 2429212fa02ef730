// The records of objects, manifests and fingerprints that the disk tier stores, and their
// serialization.
//
// Each record has a version and ends with the XXH3-64 of the bytes before it. Parsing trusts no
// byte: every error is kDataLoss. Pure functions, plain values.
#ifndef HEARTH_CACHE_STORE_DISK_STORED_RECORDS_H_
#define HEARTH_CACHE_STORE_DISK_STORED_RECORDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "proto/snapshot_format.h"

namespace hearth {

// Record of an object: its segment, and the layer and digest of each of its slices.
struct ObjectRecord {
  uint64_t number = 0;
  Digest key{};
  ObjectId id;
  uint64_t slice_bytes = 0;
  std::vector<uint32_t> layers;
  std::vector<uint64_t> slice_digests;
  bool in_table = false;  // see StoredSlice::in_table

  uint64_t stored_bytes() const { return slice_bytes * layers.size(); }
};

// Record of a restore point: its manifest, and the numbers of its objects in the manifest's order.
struct ManifestRecord {
  uint64_t number = 0;
  std::string tenant;
  uint64_t created_unix_s = 0;
  uint64_t expires_unix_s = 0;  // Unix seconds of the expiry; 0: no expiry
  bool inherited = false;  // true: no publish requested the point, so it expires with its objects
  uint64_t replaced = 0;   // number of the manifest that this one replaces; 0: none; not serialized
  std::vector<uint64_t> objects;
  Manifest manifest;
};

struct FingerprintRecord {
  Fingerprint fingerprint;
  std::string tenant;
};

inline constexpr size_t kMaxTenantBytes = 256;
// Limit of layers in a record, to bound the memory of parsing. The largest supported model has 62.
inline constexpr uint32_t kMaxRecordLayers = 1024;

// Keys of the column family `meta`. Never change a key: keys are stored on disk. A key that ends
// with `/` is a prefix, followed by a number or by the name of a text.
inline constexpr char kVersionKey[] = "format_version";
inline constexpr char kSecretCheckKey[] = "secret_check";
inline constexpr char kPinPrefix[] = "pin/";
inline constexpr char kUsePrefix[] = "use/";
inline constexpr char kNotePrefix[] = "note/";
// Key in the column family `manifests`: its value is the number of the last acknowledged drop, as
// text.
inline constexpr char kDropsKey[] = "drops";

std::string SerializeObject(const ObjectRecord& object);
absl::StatusOr<ObjectRecord> ParseObject(absl::string_view bytes);
std::string SerializeManifestRecord(const ManifestRecord& record);
absl::StatusOr<ManifestRecord> ParseManifestRecord(absl::string_view bytes);

// Returns the number as 8 big-endian bytes, so that keys sort by number.
std::string NumberKey(uint64_t number);
std::string SliceKey(uint64_t number, uint32_t layer);
absl::StatusOr<uint64_t> ParseNumberKey(absl::string_view key);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_STORED_RECORDS_H_
