// The example snapshots of the format's tests and of docs/dev/snapshot-format.md.
//
// Tiny: two layers, one of them with a sliding window, and 20 tokens in chunks of 16, so that every
// kind of object occurs. Pages: opaque pages of an inference engine, 48 tokens in blocks of 16.
// Pure functions.
#ifndef HEARTH_TESTS_PROTO_TINY_SNAPSHOT_H_
#define HEARTH_TESTS_PROTO_TINY_SNAPSHOT_H_

#include <string>
#include <utility>
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

inline std::vector<FingerprintField> PageFields() {
  return {{"cache_dtype", std::string("fp8_e4m3")},
          {"chunk_tokens", uint64_t{16}},
          {"codec", std::string("raw")},
          {"engine", std::string("vllm")},
          {"engine_version", std::string("0.32.0")},
          {"exactness", std::string("portable")},
          {"layer_types", std::string("lg")},
          {"object_layout", uint64_t{2}},
          {"page_bytes", uint64_t{72}},
          {"page_layout", std::string("[K,V][head][dim][token]")},
          {"tp_rank", uint64_t{0}},
          {"tp_size", uint64_t{1}},
          {"window", uint64_t{24}}};
}

// Returns a copy of `fields` in which one field was changed or added.
inline std::vector<FingerprintField> With(std::vector<FingerprintField> fields,
                                          FingerprintField changed) {
  for (FingerprintField& field : fields) {
    if (field.name == changed.name) {
      field = std::move(changed);
      return fields;
    }
  }
  fields.push_back(std::move(changed));
  return fields;
}

inline Fingerprint PageFingerprint() { return Fingerprint::Create(PageFields()).value(); }

inline Fingerprint TinyFingerprint() { return Fingerprint::Create(TinyFields()).value(); }

// Returns the bytes of slice number n: byte i is n * 37 + i * 11.
inline std::string TinySlice(size_t n, size_t bytes) {
  std::string slice(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) slice[i] = static_cast<char>(n * 37 + i * 11);
  return slice;
}

// Returns a manifest of `tokens` tokens with the ids 2, 3, ...
inline Manifest ManifestOf(const Fingerprint& fingerprint, uint32_t tokens) {
  const KvLayout layout = fingerprint.Layout().value();
  Manifest manifest;
  manifest.fingerprint = fingerprint.digest();
  manifest.token_count = tokens;
  manifest.next_position = tokens;
  for (uint32_t i = 0; i < tokens; ++i) manifest.token_ids.push_back(i + 2);
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

inline Manifest TinyManifest() {
  Manifest manifest = ManifestOf(TinyFingerprint(), 20);
  manifest.cuts = {5, 20};
  return manifest;
}

inline Manifest PageManifest() { return ManifestOf(PageFingerprint(), 48); }

// Returns the bytes of a snapshot file, as an export writes it.
inline std::string FileOf(const Fingerprint& fingerprint, const Manifest& manifest) {
  std::string file = BuildSnapshotHeader(fingerprint, manifest).value();
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

inline std::string TinyFile() { return FileOf(TinyFingerprint(), TinyManifest()); }
inline std::string PageFile() { return FileOf(PageFingerprint(), PageManifest()); }

}  // namespace hearth

#endif  // HEARTH_TESTS_PROTO_TINY_SNAPSHOT_H_
