// SharedSpace: one tenant's values in the shared engine: it computes their names, and seals
// (encrypts and authenticates) their contents.
//
// Names and keys are derived from the store's secret, so stores with the same secret share values.
// Without the secret, nobody can read or forge a value, or learn from a name what the value
// contains. A value can be opened only under the name and in the generation for which it was
// sealed. A tenant's generation is a number that increases after each drop of all its entries, and
// after the engine lost the number. Values of earlier generations can no longer be found or opened.
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

// The two numbers that the engine stores for each tenant, in a text of 16 bytes. Both numbers only
// increase. A new number is the current Unix time in microseconds, or the old number plus one if
// that is larger.
struct SharedNumbers {
  // Largest accepted number: far above all real numbers, but numbers can still increase after it.
  static constexpr uint64_t kMax = uint64_t{1} << 62;

  uint64_t generation = 0;  // 0: the tenant has no generation
  uint64_t drop_number =
      0;  // number of the last drop of all entries, with which a generation began; 0: no drop

  // Parses the two numbers; nullopt if `text` is invalid.
  static std::optional<SharedNumbers> Parse(absl::string_view text);
  std::string Text() const;
  bool operator==(const SharedNumbers& other) const {
    return generation == other.generation && drop_number == other.drop_number;
  }
};

class SharedSpace {
 public:
  static constexpr size_t kNonceBytes = 12;
  // Bytes that sealing adds to a text: magic, nonce and tag.
  static constexpr size_t kSealBytes = 4 + kNonceBytes + 16;
  // Limit of a value: 64 bytes less than 1 MiB, because for a full MiB Redis allocates a quarter
  // more memory.
  static constexpr size_t kMaxValueBytes = (size_t{1} << 20) - 64;
  static constexpr size_t kMaxTextBytes = kMaxValueBytes - kSealBytes;

  SharedSpace(absl::string_view secret, absl::string_view tenant, uint64_t generation,
              uint64_t drop_number = 0);

  // Returns the name under which the engine stores the tenant's two numbers, the same in every
  // generation. The numbers are sealed in generation 0: a client that can write to the engine can
  // delete them, or restore older ones, but cannot forge numbers.
  std::string NumbersName() const;
  // Returns the key from which the keys of the tenant's prompts are derived. A store with the same
  // secret uses the same root keys for its local objects.
  Digest RootOf(const Digest& fingerprint) const {
    return RootKey(fingerprint, tenant_, secret_, numbers_.drop_number);
  }
  // Returns the name of a part of an object. `segment_key`: key of the object's segment
  // (prefix_key.h).
  std::string PartName(const Digest& segment_key, LayerGroup group, uint32_t part) const;

  // Encrypts and authenticates a value. REQUIRES: text.size() <= kMaxTextBytes.
  std::string Seal(absl::string_view name, absl::string_view text) const;
  // For tests: Seal() with a given nonce of kNonceBytes bytes. REQUIRES: the nonce was never used
  // before.
  std::string SealWith(absl::string_view nonce, absl::string_view name,
                       absl::string_view text) const;
  // Decrypts and verifies a value. kDataLoss: the value was not sealed under this name in this
  // space.
  absl::StatusOr<std::string> Open(absl::string_view name, absl::string_view value) const;
  // Decrypts and verifies a value like Open(), but writes the text into `pieces`, in order; their
  // total size must be the size of the text. After an error, the contents of `pieces` are
  // undefined. `opened` is called for each decrypted block while the block is still in the CPU
  // cache, before the block is verified.
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
