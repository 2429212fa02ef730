#include "proto/prefix_key.h"

#include "absl/strings/string_view.h"
#include "proto/byte_codec.h"

namespace hearth {
namespace {

constexpr absl::string_view kRootDomain = "hearth.root.v1";
constexpr absl::string_view kChunkDomain = "hearth.chunk.v1";

}  // namespace

Digest RootKey(const Digest& fingerprint, absl::string_view tenant, absl::string_view secret,
               uint64_t drop_number) {
  std::string message;
  AppendTextField(&message, kRootDomain);
  AppendBytesField(&message, DigestBytes(fingerprint));
  AppendTextField(&message, tenant);
  AppendBytesField(&message, secret);
  if (drop_number > 0) AppendIntegerField(&message, drop_number);
  return Sha256(message);
}

Digest SegmentKey(const Digest& parent, absl::Span<const uint32_t> token_ids,
                  absl::Span<const uint32_t> cut_offsets) {
  std::string message;
  AppendTextField(&message, kChunkDomain);
  AppendBytesField(&message, DigestBytes(parent));
  AppendIntegerField(&message, token_ids.size());
  AppendIdsField(&message, token_ids);
  AppendIdsField(&message, cut_offsets);
  return Sha256(message);
}

uint64_t ChunkId(const Digest& key) {
  constexpr uint64_t kHighest = uint64_t{1} << 62;
  uint64_t id = 0;
  for (size_t i = 0; i < sizeof(id); ++i) id |= uint64_t{key[i]} << (8 * i);
  return (id & (kHighest - 1)) | kHighest;
}

}  // namespace hearth
