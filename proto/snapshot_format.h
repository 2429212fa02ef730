// The bytes of a snapshot: the manifest of one restore point, and the self-contained file.
//
// A manifest names the objects of a restore point with the digest of each slice, and the state of
// the inference (token count, position, mask, tokens, model). The store keeps manifests in RocksDB;
// a snapshot file is a header, the fingerprint's fields, a manifest, and every slice's bytes, for
// export and import. docs/dev/snapshot-format.md specifies it; tests/proto/golden fixes the bytes.
// Parsing trusts nothing: every length is checked, every error is kDataLoss and says where.
// Pure, thread safe. No I/O: callers map or read the file.
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
  uint32_t next_position = 0;  // == token_count: positions are absolute
  std::string attention_mask = "causal";
  std::vector<uint32_t> token_ids;      // token_count of them
  std::vector<uint32_t> cuts;           // strictly increasing, each in (0, token_count]
  std::vector<ManifestObject> objects;  // exactly NeededObjects(layout, token_count)
};

// Pair assertion: a manifest that fails this is neither written nor accepted.
absl::Status ValidateManifest(const Manifest& manifest, const KvLayout& layout);

std::string SerializeManifest(const Manifest& manifest);
absl::StatusOr<Manifest> ParseManifest(absl::string_view bytes);  // checks its own XXH3 trailer

// Everything in a file before the payload. Slices follow in order of objects, then layers, each at
// a 64-byte aligned offset; a trailing digest covers the header.
struct SnapshotHeader {
  Fingerprint fingerprint;
  KvLayout layout;
  Manifest manifest;
  uint64_t payload_offset = 0;
  uint64_t file_bytes = 0;
  // Offset in the file of each slice, in payload order.
  std::vector<uint64_t> slice_offsets;
};
absl::StatusOr<std::string> BuildSnapshotHeader(const Fingerprint& fingerprint,
                                                const Manifest& manifest);
// `prefix`: at least the header's bytes (a whole file will do). kDataLoss when torn.
absl::StatusOr<SnapshotHeader> ParseSnapshotHeader(absl::string_view prefix);

// Checks every slice of a whole file against its digest; kDataLoss names object, layer and offset.
absl::Status VerifySnapshotFile(absl::string_view file);

// Six-part check of a saved state against a running model: FAILED_PRECONDITION names the first
// differing part and both values (token count, position, mask, tokens, model config field, KV).
absl::Status CheckRestorable(const SnapshotHeader& snapshot, const Fingerprint& running);

}  // namespace hearth

#endif  // HEARTH_PROTO_SNAPSHOT_FORMAT_H_
