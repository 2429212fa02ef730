// SliceHasher: computes the digest of a slice whose bytes arrive in pieces. Hashes each piece while
// it is still in the CPU's cache.
//
// Thread safety: none. Ownership: owns only its state.
#ifndef HEARTH_PROTO_SLICE_HASHER_H_
#define HEARTH_PROTO_SLICE_HASHER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

struct XXH3_state_s;

namespace hearth {

class SliceHasher {
 public:
  SliceHasher();

  // Starts a new slice.
  void Begin();
  void Add(const void* data, size_t bytes);
  // Copies the bytes and adds them to the digest, in one pass over memory.
  void AddCopy(void* to, const void* from, size_t bytes);

  // Returns the SliceDigest of the bytes added since Begin.
  uint64_t digest() const;
  // Returns the number of bytes added since Begin.
  uint64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
  uint64_t bytes_ = 0;
};

// Bytes to copy with one AddCopy, so that source and copy together fit into the CPU's second-level
// cache.
inline constexpr size_t kHashBlockBytes = size_t{64} << 10;

}  // namespace hearth

#endif  // HEARTH_PROTO_SLICE_HASHER_H_
