// Keys of stored segments: a hash chain over fingerprint, tenant, secret and tokens.
//
//     root   = H("hearth.root.v1", fingerprint digest, tenant, secret[, drop number])
//     key(i) = H("hearth.chunk.v1", key(i-1) or root, token count, token ids u32 LE, cuts inside)
//
// Each field is typed and length-prefixed (bytes and test vectors: docs/dev/snapshot-format.md).
// Only the store computes keys, so the secret never leaves it. A key alone is not trusted: on every
// hit the store compares the stored token ids. Pure functions, thread safe.
#ifndef HEARTH_PROTO_PREFIX_KEY_H_
#define HEARTH_PROTO_PREFIX_KEY_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/fingerprint.h"

namespace hearth {

// `drop_number`: number of the tenant's last drop of all restore points. A new number changes all
// keys, so entries from before the drop are never found again.
Digest RootKey(const Digest& fingerprint, absl::string_view tenant, absl::string_view secret,
               uint64_t drop_number = 0);

// `cut_offsets`: CutsInside() of the segment, as offsets from its first token.
Digest SegmentKey(const Digest& parent, absl::Span<const uint32_t> token_ids,
                  absl::Span<const uint32_t> cut_offsets);

// Returns the id of a chunk for routers, computed from its key: 2^62 to 2^63 - 1. So the id is
// positive both as int64 and uint64, always takes eight bytes, and is never 0, which means "none".
uint64_t ChunkId(const Digest& key);

}  // namespace hearth

#endif  // HEARTH_PROTO_PREFIX_KEY_H_
