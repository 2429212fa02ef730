#include "proto/slice_hasher.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "proto/xxh3.h"

namespace hearth {

void SliceHasher::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

SliceHasher::SliceHasher() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  Begin();
}

void SliceHasher::Begin() {
  XXH3_64bits_reset(state_.get());
  bytes_ = 0;
}

void SliceHasher::Add(const void* data, size_t bytes) {
  const ScopedVzeroupper clean;
  XXH3_64bits_update(state_.get(), data, bytes);
  bytes_ += bytes;
}

void SliceHasher::AddCopy(void* to, const void* from, size_t bytes) {
  auto* out = static_cast<std::byte*>(to);
  auto* in = static_cast<const std::byte*>(from);
  for (size_t at = 0; at < bytes; at += kHashBlockBytes) {
    const size_t block = std::min(kHashBlockBytes, bytes - at);
    std::memcpy(out + at, in + at, block);
    Add(out + at, block);
  }
}

uint64_t SliceHasher::digest() const {
  const ScopedVzeroupper clean;
  return XXH3_64bits_digest(state_.get());
}

}  // namespace hearth
