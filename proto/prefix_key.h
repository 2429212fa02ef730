// Keys of stored segments: a hash chain over fingerprint, tenant, secret and tokens.
//
//   root   = H("hearth.root.v1", fingerprint digest, tenant, secret[, drop number])
//   key(i) = H("hearth.chunk.v1", key(i-1) or root, token count, token ids u32 LE, cuts inside)
// Each field is typed and length-prefixed (docs/dev/snapshot-format.md has the bytes, and vectors).
// Only the store computes keys: the secret never leaves it. A key is never trusted alone: callers
// compare the stored token ids on every hit. Pure functions, thread safe.
#ifndef HEARTH_PROTO_PREFIX_KEY_H_
#define HEARTH_PROTO_PREFIX_KEY_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/fingerprint.h"

namespace hearth {

// `drop_number`: of the tenant's last drop of all: nothing from before it has a key from after it.
Digest RootKey(const Digest& fingerprint, absl::string_view tenant, absl::string_view secret,
               uint64_t drop_number = 0);

// `cut_offsets`: CutsInside() of the segment, offsets from its first token.
Digest SegmentKey(const Digest& parent, absl::Span<const uint32_t> token_ids,
                  absl::Span<const uint32_t> cut_offsets);

// The number by which routers know a chunk, made of its key: 2^62 to 2^63 - 1, so that it is
// positive whether 64 bits are read with a sign or without, always takes eight bytes, and is never
// the 0 that stands for none.
uint64_t ChunkId(const Digest& key);

}  // namespace hearth

#endif  // HEARTH_PROTO_PREFIX_KEY_H_
