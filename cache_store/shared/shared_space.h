// SharedSpace: one tenant's part of the shared engine: what its values are called there, and the
// key that seals them.
//
// All of it follows from the store's secret, so that stores with one secret have one space, and
// nobody else can read a value, make one, or tell from a name what it is of. A value opens under
// the name and in the generation that it was sealed for, and nowhere else. A tenant's generation is
// another, larger number after each drop of all it has, and after the engine lost the one before:
// names and values of those before are of no use then.
//
// Keys are HKDF-SHA-256 of the secret, "hearth.shared.v1" and the tenant: one seals, one names. A
// name is "h1:{" base64url(HMAC-SHA-256(naming key, generation u64, segment key)) "}:g:0". A value
// is a magic u32, a nonce of 12 bytes, AES-256-GCM of the text and a tag of 16 bytes; its
// associated data are magic, generation u64 and name.
//
// docs/dev/snapshot-format.md has it in full. Thread safety: all methods from any thread.
#ifndef HEARTH_CACHE_STORE_SHARED_SHARED_SPACE_H_
#define HEARTH_CACHE_STORE_SHARED_SHARED_SPACE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/digest.h"
#include "proto/kv_layout.h"
#include "proto/prefix_key.h"

namespace hearth {

// What the engine knows of a tenant, as a text of 16 bytes: two numbers that only grow, each the
// microseconds of Unix time at which it began, or one more than the one before it.
struct SharedNumbers {
  // No number of ours is near it, and those after it are numbers still.
  static constexpr uint64_t kMax = uint64_t{1} << 62;

  uint64_t generation = 0;   // 0: none
  uint64_t drop_number = 0;  // of the last drop of all, which began a generation; 0: there was none

  // None: not a text of numbers.
  static std::optional<SharedNumbers> Parse(absl::string_view text);
  std::string Text() const;
  bool operator==(const SharedNumbers& other) const {
    return generation == other.generation && drop_number == other.drop_number;
  }
};

class SharedSpace {
 public:
  static constexpr size_t kNonceBytes = 12;
  // What sealing adds: magic, nonce, tag.
  static constexpr size_t kSealBytes = 4 + kNonceBytes + 16;
  // Redis takes a quarter more for a value of 1 MiB than for one of 64 bytes less.
  static constexpr size_t kMaxValueBytes = (size_t{1} << 20) - 64;
  static constexpr size_t kMaxTextBytes = kMaxValueBytes - kSealBytes;

  SharedSpace(absl::string_view secret, absl::string_view tenant, uint64_t generation,
              uint64_t drop_number = 0);

  // Where the tenant's numbers are, sealed in generation 0: who can write to the engine can take
  // them away, or put older ones back, and not make any. The same in every generation.
  std::string NumbersName() const;
  // Of the keys of its prompts, which are a store's own where it has the same secret.
  Digest RootOf(const Digest& fingerprint) const {
    return RootKey(fingerprint, tenant_, secret_, numbers_.drop_number);
  }
  // `segment_key`: of the segment that the object is of (prefix_key.h).
  std::string PartName(const Digest& segment_key, LayerGroup group, uint32_t part) const;

  // REQUIRES: at most kMaxTextBytes.
  std::string Seal(absl::string_view name, absl::string_view text) const;
  // With a nonce that the caller chose, of kNonceBytes and never used before. For tests.
  std::string SealWith(absl::string_view nonce, absl::string_view name,
                       absl::string_view text) const;
  // kDataLoss: not a value that was sealed for this name here.
  absl::StatusOr<std::string> Open(absl::string_view name, absl::string_view value) const;
  // The same, with the text in `pieces`, one after the other, which have its size all together.
  // After an error what is in them is of no use. `opened`: called for each block of a piece while a
  // cache still has it, before it is known to be genuine.
  using Opened = absl::FunctionRef<void(absl::Span<const std::byte> block)>;
  absl::Status OpenInto(absl::string_view name, absl::string_view value,
                        absl::Span<const absl::Span<std::byte>> pieces, Opened opened) const;

  uint64_t generation() const { return numbers_.generation; }
  uint64_t drop_number() const { return numbers_.drop_number; }

 private:
  std::string NameOf(absl::string_view what) const;
  std::string AssociatedData(absl::string_view name) const;

  const std::string secret_, tenant_;
  const SharedNumbers numbers_;
  std::string sealing_key_, naming_key_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_SHARED_SPACE_H_
