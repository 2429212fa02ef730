// SharedSpace: one tenant's key space in the shared engine: the names of its values, and the key
// that seals them.
//
// Names and keys derive from the store's secret. Stores with the same secret share one space.
// Without the secret, it is impossible to read a value, to forge a value, or to learn from a name
// what the value contains. A value can only be opened under the name and in the generation for
// which it was sealed. A tenant's generation changes to a larger number after each drop of all its
// entries, and after the engine lost the previous number; names and values of earlier generations
// are useless then.
//
// HKDF-SHA-256 of the secret, "hearth.shared.v1" and the tenant gives two keys: the sealing key and
// the naming key. A name is "h1:{" base64url(HMAC-SHA-256(naming key, generation u64, segment key))
// "}:g:0". A value is a magic u32, a nonce of 12 bytes, AES-256-GCM of the text and a tag of 16
// bytes; its associated data are magic, generation u64 and name.
//
// docs/dev/snapshot-format.md has the full format. Thread safety: all methods from any thread.
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

// The engine's record of a tenant, a text of 16 bytes: two numbers that only grow. A new number is
// the current Unix time in microseconds, or the previous number plus one if that is larger.
struct SharedNumbers {
  // Far above every real number, so that numbers can still grow after the largest accepted number.
  static constexpr uint64_t kMax = uint64_t{1} << 62;

  uint64_t generation = 0;  // 0: none
  uint64_t drop_number =
      0;  // number of the last drop of all entries, which began a generation; 0: no drop

  // Returns nullopt if `text` is not such a text.
  static std::optional<SharedNumbers> Parse(absl::string_view text);
  std::string Text() const;
  bool operator==(const SharedNumbers& other) const {
    return generation == other.generation && drop_number == other.drop_number;
  }
};

class SharedSpace {
 public:
  static constexpr size_t kNonceBytes = 12;
  // Bytes added by sealing: magic, nonce, tag.
  static constexpr size_t kSealBytes = 4 + kNonceBytes + 16;
  // 64 bytes below 1 MiB: Redis needs a quarter more memory for a value of a full 1 MiB.
  static constexpr size_t kMaxValueBytes = (size_t{1} << 20) - 64;
  static constexpr size_t kMaxTextBytes = kMaxValueBytes - kSealBytes;

  SharedSpace(absl::string_view secret, absl::string_view tenant, uint64_t generation,
              uint64_t drop_number = 0);

  // Returns the name of the tenant's numbers, the same in every generation. The numbers are sealed
  // in generation 0: a client that can write to the engine can delete them or restore older
  // numbers, but cannot forge any.
  std::string NumbersName() const;
  // Returns the root key of the tenant's prompts. A store with the same secret has the same root
  // keys for its own objects.
  Digest RootOf(const Digest& fingerprint) const {
    return RootKey(fingerprint, tenant_, secret_, numbers_.drop_number);
  }
  // `segment_key`: key of the object's segment (prefix_key.h).
  std::string PartName(const Digest& segment_key, LayerGroup group, uint32_t part) const;

  // REQUIRES: text.size() <= kMaxTextBytes.
  std::string Seal(absl::string_view name, absl::string_view text) const;
  // For tests: as Seal, with the caller's nonce of kNonceBytes. REQUIRES: the nonce was never used
  // before.
  std::string SealWith(absl::string_view nonce, absl::string_view name,
                       absl::string_view text) const;
  // Returns the text. kDataLoss: `value` was not sealed for this name in this space.
  absl::StatusOr<std::string> Open(absl::string_view name, absl::string_view value) const;
  // As Open, but writes the text into `pieces`, in order; their total size must be the size of the
  // text. After an error, the contents of `pieces` are undefined. `opened` is called for each
  // decrypted block of a piece while the block is still in the processor's cache, before the block
  // is known to be genuine.
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
