#include "cache_store/shared/shared_space.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/byte_codec.h"

namespace hearth {
namespace {

constexpr uint32_t kValueMagic = 0x31565348;  // "HSV1" in ASCII
constexpr char kDomain[] = "hearth.shared.v1";
constexpr size_t kKeyBytes = 32;
constexpr size_t kTagBytes = 16;
// Bytes to decrypt at once: this block and its encrypted bytes fit into the CPU's L2 cache.
constexpr size_t kBlockBytes = size_t{64} << 10;
constexpr size_t kTextOffset = SharedSpace::kSealBytes - kTagBytes;

// Aborts if an OpenSSL call failed: it fails only if the algorithm is missing, and values must
// never be written unencrypted.
void MustBe(bool ok) {
  if (!ok) std::abort();
}

unsigned char* Bytes(std::string* text) { return reinterpret_cast<unsigned char*>(text->data()); }
const unsigned char* Bytes(absl::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

std::string Hkdf(absl::string_view secret, std::string info, size_t bytes) {
  const std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)> kdf(
      EVP_KDF_fetch(nullptr, "HKDF", nullptr), &EVP_KDF_free);
  MustBe(kdf != nullptr);
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(
      EVP_KDF_CTX_new(kdf.get()), &EVP_KDF_CTX_free);
  MustBe(context != nullptr);
  std::string digest = "SHA256", key(secret);
  const OSSL_PARAM params[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, key.data(), key.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
      OSSL_PARAM_construct_end()};
  std::string out(bytes, '\0');
  MustBe(EVP_KDF_derive(context.get(), Bytes(&out), out.size(), params) == 1);
  return out;
}

absl::Status OtherLength() {
  return absl::DataLossError("a value of the shared tier has a wrong length");
}

// Returns the thread's cipher context. Creating a context takes as long as encrypting several
// kilobytes.
EVP_CIPHER_CTX* CipherContext() {
  thread_local const std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context(
      EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  MustBe(context != nullptr);
  return context.get();
}

}  // namespace

std::optional<SharedNumbers> SharedNumbers::Parse(absl::string_view text) {
  if (text.size() != 2 * sizeof(uint64_t)) return std::nullopt;
  ByteReader reader(text);
  const SharedNumbers numbers{reader.U64("generation"), reader.U64("drop number")};
  if (numbers.generation == 0 || numbers.generation > kMax) return std::nullopt;
  if (numbers.drop_number > numbers.generation) return std::nullopt;
  return numbers;
}

std::string SharedNumbers::Text() const {
  std::string text;
  AppendU64(&text, generation);
  AppendU64(&text, drop_number);
  return text;
}

SharedSpace::SharedSpace(absl::string_view secret, absl::string_view tenant, uint64_t generation,
                         uint64_t drop_number)
    : secret_(secret), tenant_(tenant), numbers_{generation, drop_number} {
  std::string info;
  AppendTextField(&info, kDomain);
  AppendTextField(&info, tenant);
  const std::string keys = Hkdf(secret, std::move(info), 2 * kKeyBytes);
  assert(keys.size() == 2 * kKeyBytes);
  sealing_key_ = keys.substr(0, kKeyBytes);
  naming_key_ = keys.substr(kKeyBytes);
}

std::string SharedSpace::NameOf(absl::string_view what) const {
  std::string code(kKeyBytes, '\0');
  unsigned int size = 0;
  MustBe(HMAC(EVP_sha256(), naming_key_.data(), static_cast<int>(naming_key_.size()), Bytes(what),
              what.size(), Bytes(&code), &size) != nullptr);
  MustBe(size == code.size());
  // The braces are a hash tag of Redis Cluster: all values of a chunk are on the same shard.
  return absl::StrCat("h1:{", absl::WebSafeBase64Escape(code), "}");
}

std::string SharedSpace::NumbersName() const { return absl::StrCat(NameOf("numbers"), ":n"); }

std::string SharedSpace::PartName(const Digest& segment_key, LayerGroup group,
                                  uint32_t part) const {
  std::string what;
  AppendU64(&what, numbers_.generation);
  absl::StrAppend(&what, DigestBytes(segment_key));
  return absl::StrCat(NameOf(what), group == LayerGroup::kGlobal ? ":g:" : ":l:", part);
}

std::string SharedSpace::AssociatedData(absl::string_view name) const {
  std::string data;
  AppendU32(&data, kValueMagic);
  AppendU64(&data, numbers_.generation);
  absl::StrAppend(&data, name);
  return data;
}

std::string SharedSpace::Seal(absl::string_view name, absl::string_view text) const {
  std::string nonce(kNonceBytes, '\0');
  MustBe(RAND_bytes(Bytes(&nonce), kNonceBytes) == 1);
  return SealWith(nonce, name, text);
}

std::string SharedSpace::SealWith(absl::string_view nonce, absl::string_view name,
                                  absl::string_view text) const {
  assert(text.size() <= kMaxTextBytes && nonce.size() == kNonceBytes);
  std::string value;
  value.reserve(text.size() + kSealBytes);
  AppendU32(&value, kValueMagic);
  absl::StrAppend(&value, nonce);
  value.resize(text.size() + kSealBytes);
  const std::string data = AssociatedData(name);
  EVP_CIPHER_CTX* const context = CipherContext();
  int size = 0;
  MustBe(EVP_EncryptInit_ex(context, EVP_aes_256_gcm(), nullptr, Bytes(sealing_key_),
                            Bytes(nonce)) == 1);
  MustBe(EVP_EncryptUpdate(context, nullptr, &size, Bytes(data), static_cast<int>(data.size())) ==
         1);
  unsigned char* const out = Bytes(&value) + kTextOffset;
  MustBe(EVP_EncryptUpdate(context, out, &size, Bytes(text), static_cast<int>(text.size())) == 1);
  MustBe(static_cast<size_t>(size) == text.size());
  MustBe(EVP_EncryptFinal_ex(context, out + size, &size) == 1);
  MustBe(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_GET_TAG, kTagBytes, out + text.size()) == 1);
  return value;
}

absl::StatusOr<std::string> SharedSpace::Open(absl::string_view name,
                                              absl::string_view value) const {
  std::string text(value.size() - std::min(value.size(), kSealBytes), '\0');
  const absl::Span<std::byte> piece(reinterpret_cast<std::byte*>(text.data()), text.size());
  if (absl::Status status = OpenInto(name, value, {piece}, [](absl::Span<const std::byte>) {});
      !status.ok())
    return status;
  return text;
}

absl::Status SharedSpace::OpenInto(absl::string_view name, absl::string_view value,
                                   absl::Span<const absl::Span<std::byte>> pieces,
                                   Opened opened) const {
  if (value.size() < kSealBytes || value.size() > kMaxValueBytes) {
    return absl::DataLossError(absl::StrCat("a value of the shared tier must have ", kSealBytes,
                                            " to ", kMaxValueBytes, " bytes; got ", value.size()));
  }
  size_t left = value.size() - kSealBytes;
  for (const absl::Span<std::byte> piece : pieces) {
    if (piece.size() > left) return OtherLength();
    left -= piece.size();
  }
  if (left > 0) return OtherLength();
  ByteReader reader(value);
  if (reader.U32("magic") != kValueMagic) {
    return absl::DataLossError("a value of the shared tier is not of format version 1");
  }
  const absl::string_view nonce = reader.Bytes(kNonceBytes, "nonce");
  const std::string data = AssociatedData(name);
  EVP_CIPHER_CTX* const context = CipherContext();
  int size = 0;
  MustBe(EVP_DecryptInit_ex(context, EVP_aes_256_gcm(), nullptr, Bytes(sealing_key_),
                            Bytes(nonce)) == 1);
  MustBe(EVP_DecryptUpdate(context, nullptr, &size, Bytes(data), static_cast<int>(data.size())) ==
         1);
  const unsigned char* from = Bytes(value) + kTextOffset;
  for (const absl::Span<std::byte> piece : pieces) {
    for (size_t at = 0; at < piece.size(); at += static_cast<size_t>(size)) {
      const absl::Span<std::byte> block = piece.subspan(at, kBlockBytes);
      auto* const to = reinterpret_cast<unsigned char*>(block.data());
      MustBe(EVP_DecryptUpdate(context, to, &size, from, static_cast<int>(block.size())) == 1);
      MustBe(static_cast<size_t>(size) == block.size());
      from += block.size();
      opened(block);
    }
  }
  std::string tag(value.substr(value.size() - kTagBytes));
  MustBe(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_SET_TAG, kTagBytes, tag.data()) == 1);
  unsigned char rest[16];
  if (EVP_DecryptFinal_ex(context, rest, &size) == 1) return absl::OkStatus();
  return absl::DataLossError(
      "a value of the shared tier was changed, or was not written under this name");
}

}  // namespace hearth
