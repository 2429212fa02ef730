// The bytes of a snapshot: the manifest of one restore point, and the self-contained file.
//
// A manifest lists the objects of a restore point with the digest of each slice, and the state of
// the inference (token count, position, mask, tokens, model). The store keeps manifests in RocksDB.
// A snapshot file, for export and import, holds a header, the fingerprint's fields, a manifest, and
// the bytes of every slice. Specification: docs/dev/snapshot-format.md; tests/proto/golden fixes
// the bytes.
// Parsers trust nothing: they check every length, and every error is kDataLoss and names the place.
// Pure functions, thread safe. No I/O: callers map or read the file.
#ifndef HEARTH_PROTO_SNAPSHOT_FORMAT_H_
#define HEARTH_PROTO_SNAPSHOT_FORMAT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"

namespace hearth {

struct ManifestObject {
  ObjectId id;
  std::vector<uint64_t> slice_digests;  // one per layer of the group, ascending by layer
};

struct Manifest {
  Digest fingerprint{};
  uint32_t token_count = 0;    // the boundary
  uint32_t next_position = 0;  // equals token_count, because positions are absolute
  std::string attention_mask = "causal";
  std::vector<uint32_t> token_ids;      // token_count of them
  std::vector<uint32_t> cuts;           // strictly increasing, each in (0, token_count]
  std::vector<ManifestObject> objects;  // exactly NeededObjects(layout, token_count)
};

// Checked both when a manifest is written and when it is read.
absl::Status ValidateManifest(const Manifest& manifest, const KvLayout& layout);

std::string SerializeManifest(const Manifest& manifest);
absl::StatusOr<Manifest> ParseManifest(absl::string_view bytes);  // also checks the XXH3 at the end

// All parts of a file before the slices. The slices follow, sorted by object and then by layer,
// each at a 64-byte aligned offset. A digest at the end covers the header.
struct SnapshotHeader {
  Fingerprint fingerprint;
  KvLayout layout;
  Manifest manifest;
  uint64_t payload_offset = 0;
  uint64_t file_bytes = 0;
  // Offset of each slice in the file, in this order.
  std::vector<uint64_t> slice_offsets;
};
absl::StatusOr<std::string> BuildSnapshotHeader(const Fingerprint& fingerprint,
                                                const Manifest& manifest);
// `prefix`: at least the header's bytes; a whole file works too. kDataLoss: damaged or cut short.
absl::StatusOr<SnapshotHeader> ParseSnapshotHeader(absl::string_view prefix);

// Checks the digest of every slice in a whole file. kDataLoss names object, layer and offset.
absl::Status VerifySnapshotFile(absl::string_view file);

// Checks six parts of a saved state against a running model: token count, position, mask, tokens,
// model config, KV. kFailedPrecondition names the first part that differs and both values.
absl::Status CheckRestorable(const SnapshotHeader& snapshot, const Fingerprint& running);

}  // namespace hearth

#endif  // HEARTH_PROTO_SNAPSHOT_FORMAT_H_
