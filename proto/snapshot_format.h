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
  // one digest per layer of the group, in ascending order of layers
  std::vector<uint64_t> slice_digests;
};

struct Manifest {
  Digest fingerprint{};
  uint32_t token_count = 0;  // number of tokens; the boundary of the restore point
  // position of the next token; equals token_count, because positions are absolute
  uint32_t next_position = 0;
  std::string attention_mask = "causal";
  std::vector<uint32_t> token_ids;      // `token_count` ids
  std::vector<uint32_t> cuts;           // strictly increasing, each in (0, token_count]
  std::vector<ManifestObject> objects;  // exactly the objects of NeededObjects(layout, token_count)
};

// Validates a manifest. Called when a manifest is written and when it is read.
absl::Status ValidateManifest(const Manifest& manifest, const KvLayout& layout);

std::string SerializeManifest(const Manifest& manifest);
// also verifies the XXH3 digest at the end
absl::StatusOr<Manifest> ParseManifest(absl::string_view bytes);

// The header of a snapshot file: everything before the slices. The slices follow, sorted by object
// and then by layer, each at an offset that is a multiple of 64. The digest at the end of the
// header covers the header.
struct SnapshotHeader {
  Fingerprint fingerprint;
  KvLayout layout;
  Manifest manifest;
  uint64_t payload_offset = 0;
  uint64_t file_bytes = 0;
  // Offset of each slice in the file, sorted by object and then by layer.
  std::vector<uint64_t> slice_offsets;
};
absl::StatusOr<std::string> BuildSnapshotHeader(const Fingerprint& fingerprint,
                                                const Manifest& manifest);
// Parses a header. `prefix`: the file or at least its whole header. kDataLoss: the header is
// damaged or truncated.
absl::StatusOr<SnapshotHeader> ParseSnapshotHeader(absl::string_view prefix);

// Verifies the digest of every slice in a whole file. kDataLoss names the object, layer and offset
// of a damaged slice.
absl::Status VerifySnapshotFile(absl::string_view file);

// Compares the six fields of a saved inference state with a running model: token count, position,
// mask, tokens, model config, KV. kFailedPrecondition names the first field that differs, and both
// values.
absl::Status CheckRestorable(const SnapshotHeader& snapshot, const Fingerprint& running);

}  // namespace hearth

#endif  // HEARTH_PROTO_SNAPSHOT_FORMAT_H_
