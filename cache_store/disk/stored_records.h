// Records that the disk tier stores in addition to slices, and their serialization.
//
// Each record is versioned and ends with the XXH3-64 of the bytes before it. Parsing trusts
// nothing: every error is kDataLoss. Pure functions, plain values.
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

// An object: its segment, and the layer and digest of each of its slices.
struct ObjectRecord {
  uint64_t number = 0;
  Digest key{};
  ObjectId id;
  uint64_t slice_bytes = 0;
  std::vector<uint32_t> layers;
  std::vector<uint64_t> slice_digests;
  bool in_table = false;  // as in StoredSlice

  uint64_t stored_bytes() const { return slice_bytes * layers.size(); }
};

// A restore point: its manifest, and the numbers of the objects, in the manifest's order.
struct ManifestRecord {
  uint64_t number = 0;
  std::string tenant;
  uint64_t created_unix_s = 0;
  uint64_t expires_unix_s = 0;  // 0: no expiry
  bool inherited = false;       // no publish named the point: it expires with its objects
  uint64_t replaced = 0;  // not stored: number of the manifest that this one replaces; 0: none
  std::vector<uint64_t> objects;
  Manifest manifest;
};

struct FingerprintRecord {
  Fingerprint fingerprint;
  std::string tenant;
};

inline constexpr size_t kMaxTenantBytes = 256;
// The largest model has 62 layers. Leaves room to grow, and bounds the memory of parsing.
inline constexpr uint32_t kMaxRecordLayers = 1024;

// Keys of the family `meta`, on disk: never change a key. A prefix is followed by a number's key or
// by a note's name.
inline constexpr char kVersionKey[] = "format_version";
inline constexpr char kSecretCheckKey[] = "secret_check";
inline constexpr char kPinPrefix[] = "pin/";
inline constexpr char kUsePrefix[] = "use/";
inline constexpr char kNotePrefix[] = "note/";
// Key of the family `manifests`: the number of the last acknowledged drop, as text.
inline constexpr char kDropsKey[] = "drops";

std::string SerializeObject(const ObjectRecord& object);
absl::StatusOr<ObjectRecord> ParseObject(absl::string_view bytes);
std::string SerializeManifestRecord(const ManifestRecord& record);
absl::StatusOr<ManifestRecord> ParseManifestRecord(absl::string_view bytes);

// Big-endian, so that keys sort by number.
std::string NumberKey(uint64_t number);
std::string SliceKey(uint64_t number, uint32_t layer);
absl::StatusOr<uint64_t> ParseNumberKey(absl::string_view key);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_STORED_RECORDS_H_
