// The snapshot that the format's tests and docs/snapshot_format.md use as their example: two
// layers, one of them sliding-window, 20 tokens in chunks of 16, so every kind of object occurs.
// Pure functions.
#ifndef HEARTH_TESTS_PROTO_TINY_SNAPSHOT_H_
#define HEARTH_TESTS_PROTO_TINY_SNAPSHOT_H_

#include <string>
#include <vector>

#include "proto/fingerprint.h"
#include "proto/restore_rule.h"
#include "proto/snapshot_format.h"

namespace hearth {

inline std::vector<FingerprintField> TinyFields() {
  return {{"chunk_tokens", uint64_t{16}},
          {"codec", std::string("raw")},
          {"exactness", std::string("exact")},
          {"head_dim", uint64_t{2}},
          {"kv_dtype", std::string("float16")},
          {"kv_heads", uint64_t{1}},
          {"layer_types", std::string("lg")},
          {"norm_epsilon", 1e-6},
          {"object_layout", uint64_t{1}},
          {"vocab_size", uint64_t{64}},
          {"window", uint64_t{8}}};
}

inline Fingerprint TinyFingerprint() { return Fingerprint::Create(TinyFields()).value(); }

// Byte i of the n-th slice of the file.
inline std::string TinySlice(size_t n, size_t bytes) {
  std::string slice(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) slice[i] = static_cast<char>(n * 37 + i * 11);
  return slice;
}

inline Manifest TinyManifest() {
  const KvLayout layout = TinyFingerprint().Layout().value();
  Manifest manifest;
  manifest.fingerprint = TinyFingerprint().digest();
  manifest.token_count = 20;
  manifest.next_position = 20;
  for (uint32_t i = 0; i < 20; ++i) manifest.token_ids.push_back(i + 2);
  manifest.cuts = {5, 20};
  size_t n = 0;
  for (const ObjectId& id : NeededObjects(layout, manifest.token_count)) {
    ManifestObject object;
    object.id = id;
    for (size_t i = 0; i < layout.LayersOf(id.group).size(); ++i) {
      const std::string slice = TinySlice(n++, layout.SliceBytes(id.tokens));
      object.slice_digests.push_back(SliceDigest(slice.data(), slice.size()));
    }
    manifest.objects.push_back(object);
  }
  return manifest;
}

// The whole file, written the way an exporter writes it.
inline std::string TinyFile() {
  std::string file = BuildSnapshotHeader(TinyFingerprint(), TinyManifest()).value();
  const SnapshotHeader header = ParseSnapshotHeader(file).value();
  size_t n = 0;
  for (const ManifestObject& object : header.manifest.objects) {
    for (size_t i = 0; i < object.slice_digests.size(); ++i, ++n) {
      file.resize(header.slice_offsets[n], '\0');
      file += TinySlice(n, header.layout.SliceBytes(object.id.tokens));
    }
  }
  return file;
}

}  // namespace hearth

#endif  // HEARTH_TESTS_PROTO_TINY_SNAPSHOT_H_
