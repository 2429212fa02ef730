// SliceHasher: the digest of a slice whose bytes come in parts, taken while each part is still in
// the processor's cache.
//
// Thread safety: none. Ownership: owns its state only.
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

  // Forgets what was added.
  void Begin();
  void Add(const void* data, size_t bytes);
  // Copies, and adds what then lies at `to`: one pass over the memory for both.
  void AddCopy(void* to, const void* from, size_t bytes);

  // SliceDigest of all that was added since Begin, and how many bytes that is.
  uint64_t digest() const;
  uint64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
  uint64_t bytes_ = 0;
};

// How much to copy between two Adds: what the processor's second-level cache holds beside its
// source.
inline constexpr size_t kHashBlockBytes = size_t{64} << 10;

}  // namespace hearth

#endif  // HEARTH_PROTO_SLICE_HASHER_H_
