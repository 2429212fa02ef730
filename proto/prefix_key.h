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

// Returns the key before the first segment of a tenant's prompts. `drop_number` counts the tenant's
// drops of all restore points. A new number changes all keys, so entries stored before the drop are
// never found again.
Digest RootKey(const Digest& fingerprint, absl::string_view tenant, absl::string_view secret,
               uint64_t drop_number = 0);

// Returns the key of a segment. `cut_offsets`: the cuts inside the segment (CutsInside), as offsets
// from its first token.
Digest SegmentKey(const Digest& parent, absl::Span<const uint32_t> token_ids,
                  absl::Span<const uint32_t> cut_offsets);

// Returns the id by which routers know a chunk, computed from the chunk's key. It is from 2^62 to
// 2^63 - 1, so it is positive as int64 and uint64, always takes eight bytes, and is never 0, which
// stands for "none".
uint64_t ChunkId(const Digest& key);

}  // namespace hearth

#endif  // HEARTH_PROTO_PREFIX_KEY_H_
