// A small KV geometry and deterministic objects, for tests of gRPC messages without a model or a
// store.
#ifndef HEARTH_TESTS_SERVICES_STORE_SMALL_LAYOUT_H_
#define HEARTH_TESTS_SERVICES_STORE_SMALL_LAYOUT_H_

#include <cassert>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "proto/restore_rule.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

// Chunks of 16 tokens, a window of 24 tokens, layers local, global, local. A slice of a chunk has 1
// KiB.
inline Fingerprint SmallFingerprint(const std::string& weights = "a") {
  absl::StatusOr<Fingerprint> fingerprint =
      Fingerprint::Create({{"chunk_tokens", uint64_t{16}},
                           {"window", uint64_t{24}},
                           {"kv_heads", uint64_t{2}},
                           {"head_dim", uint64_t{4}},
                           {"kv_dtype", std::string("float32")},
                           {"exactness", std::string("exact")},
                           {"layer_types", std::string("lgl")},
                           {"object_layout", uint64_t{1}},
                           {"codec", std::string("raw")},
                           {"weights", weights}});
  assert(fingerprint.ok());
  return *fingerprint;
}

inline KvLayout SmallLayout() {
  absl::StatusOr<KvLayout> layout = SmallFingerprint().Layout();
  assert(layout.ok());
  return *layout;
}

// Like SmallFingerprint, but with slices of 8 KiB, so that a slice fills at least one granule of
// shared memory.
inline Fingerprint WideFingerprint() {
  return *Fingerprint::Create({{"chunk_tokens", uint64_t{16}},
                               {"window", uint64_t{24}},
                               {"kv_heads", uint64_t{2}},
                               {"head_dim", uint64_t{32}},
                               {"kv_dtype", std::string("float32")},
                               {"exactness", std::string("exact")},
                               {"layer_types", std::string("lgl")},
                               {"object_layout", uint64_t{1}},
                               {"codec", std::string("raw")}});
}
inline KvLayout WideLayout() { return *WideFingerprint().Layout(); }

inline std::vector<uint32_t> CountingTokens(uint32_t tokens, uint32_t first = 5) {
  std::vector<uint32_t> ids(tokens);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

// Returns the object for `id`: the same bytes for every publisher, unless `salt` differs.
inline std::shared_ptr<const KvObject> ObjectOf(const KvLayout& layout, const ObjectId& id,
                                                uint8_t salt = 0) {
  auto object = std::make_shared<KvObject>();
  object->id = id;
  object->size_bytes = layout.ObjectBytes(id.tokens, id.group);
  object->bytes = std::shared_ptr<std::byte[]>(new std::byte[object->size_bytes]);
  for (size_t i = 0; i < object->size_bytes; ++i) {
    object->bytes[i] =
        static_cast<std::byte>(i * 7 + id.begin * 3 + static_cast<int>(id.group) + salt);
  }
  const size_t slice_bytes = layout.SliceBytes(id.tokens);
  for (size_t at = 0; at < object->size_bytes; at += slice_bytes) {
    object->slice_digests.push_back(SliceDigest(object->bytes.get() + at, slice_bytes));
  }
  return object;
}

inline std::shared_ptr<const KvObject> SmallObject(const ObjectId& id, uint8_t salt = 0) {
  return ObjectOf(SmallLayout(), id, salt);
}

inline std::vector<std::shared_ptr<const KvObject>> SmallObjects(uint32_t boundary) {
  std::vector<std::shared_ptr<const KvObject>> objects;
  for (const ObjectId& id : NeededObjects(SmallLayout(), boundary))
    objects.push_back(SmallObject(id));
  return objects;
}

inline bool SameBytes(const KvObject& a, const KvObject& b) {
  return a.id == b.id && a.size_bytes == b.size_bytes &&
         std::memcmp(a.bytes.get(), b.bytes.get(), a.size_bytes) == 0;
}

}  // namespace hearth

#endif  // HEARTH_TESTS_SERVICES_STORE_SMALL_LAYOUT_H_
