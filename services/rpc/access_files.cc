#include "services/rpc/access_files.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_store/base/regular_file.h"

namespace hearth {
namespace {

// Maximum size in bytes of a file that an access flag names. A certificate chain has some KiB; an
// identities file with 100,000 tenants has 10 MiB.
constexpr uint64_t kMaxFlagFileBytes = uint64_t{16} << 20;
// Warn this long before a certificate expires: enough to renew it by hand.
constexpr absl::Duration kWarnBefore = absl::Hours(24 * 14);

struct FreeTls {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Bio = std::unique_ptr<BIO, FreeTls>;
using Certificate = std::unique_ptr<X509, FreeTls>;
using Key = std::unique_ptr<EVP_PKEY, FreeTls>;

Bio Over(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Passphrase callback of OpenSSL that gives no passphrase, so that OpenSSL never asks for one.
int NoPassphrase(char*, int, int, void*) { return 0; }

std::string SubjectOf(const X509* certificate) {
  char text[256] = "";
  X509_NAME_oneline(X509_get_subject_name(certificate), text, sizeof(text));
  return text;
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfiniteFuture();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

// Reads all certificates in `text`, the text of a PEM file. Stores the first certificate in *first.
absl::Status ReadCertificates(const std::string& flag, const std::string& file,
                              const std::string& text, Certificate* first,
                              std::vector<CertificateLife>* lives) {
  const Bio bio = Over(text);
  int count = 0;
  for (;; ++count) {
    Certificate next(PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr));
    if (next == nullptr) break;
    lives->push_back({flag, file, SubjectOf(next.get()), TimeOf(X509_get0_notBefore(next.get())),
                      TimeOf(X509_get0_notAfter(next.get()))});
    if (count == 0 && first != nullptr) *first = std::move(next);
  }
  const unsigned long error = ERR_peek_last_error();
  const bool at_end =
      ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (count > 0 && at_end) return absl::OkStatus();
  return absl::InvalidArgumentError(
      count == 0 ? absl::StrCat("--", flag, ": ", file, " holds no certificate (PEM)")
                 : absl::StrCat("--", flag, ": ", file, ": the data after ", count,
                                " certificates is not valid PEM"));
}

}  // namespace

bool StaysOnHost(const std::string& address) {
  for (const char* local : {"unix:", "unix-abstract:", "localhost:", "[::1]:"}) {
    if (absl::StartsWith(address, local)) return true;
  }
  // Checks all characters, because a host name may begin with "127." too.
  return absl::StartsWith(address, "127.") &&
         address.find_first_not_of("0123456789.:") == std::string::npos;
}

absl::StatusOr<std::string> ReadFlagFile(const std::string& flag, const std::string& path,
                                         bool pipes_too) {
  absl::StatusOr<std::string> text = ReadBoundedFile(path, kMaxFlagFileBytes, pipes_too);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        absl::StrCat("--", flag, ": ", text.status().message()));
  }
  if (text->empty()) return absl::NotFoundError(absl::StrCat("--", flag, ": ", path, " is empty"));
  return text;
}

absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files) {
  TlsTexts texts;
  if (!files.certificate.empty()) {
    absl::StatusOr<std::string> chain =
        ReadFlagFile(files.certificate_flag, files.certificate, files.pipes_too);
    if (!chain.ok()) return chain.status();
    absl::StatusOr<std::string> key_text = ReadFlagFile(files.key_flag, files.key, files.pipes_too);
    if (!key_text.ok()) return key_text.status();
    Certificate own;
    absl::Status status =
        ReadCertificates(files.certificate_flag, files.certificate, *chain, &own, &texts.lives);
    if (!status.ok()) return status;
    const Key key(PEM_read_bio_PrivateKey(Over(*key_text).get(), nullptr, NoPassphrase, nullptr));
    ERR_clear_error();
    if (key == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", files.key_flag, ": ", files.key,
                       " holds no private key (PEM) that can be read without a passphrase"));
    }
    const bool is_pair = X509_check_private_key(own.get(), key.get()) == 1;
    ERR_clear_error();
    if (!is_pair) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--", files.key_flag, ": ", files.key, " does not belong to the certificate in --",
          files.certificate_flag, " ", files.certificate, ", ", SubjectOf(own.get())));
    }
    texts.certificate = *std::move(chain);
    texts.key = *std::move(key_text);
  }
  if (!files.authority.empty()) {
    absl::StatusOr<std::string> authority =
        ReadFlagFile(files.authority_flag, files.authority, files.pipes_too);
    if (!authority.ok()) return authority.status();
    const absl::Status status =
        ReadCertificates(files.authority_flag, files.authority, *authority, nullptr, &texts.lives);
    if (!status.ok()) return status;
    texts.authority = *std::move(authority);
  }
  return texts;
}

std::vector<std::string> CertificateNames(const X509* certificate) {
  std::vector<std::string> names;
  const auto add = [&names](const ASN1_STRING* name) {
    unsigned char* utf8 = nullptr;
    const int bytes = ASN1_STRING_to_UTF8(&utf8, name);
    if (bytes < 0) return;
    names.emplace_back(reinterpret_cast<const char*>(utf8), bytes);
    OPENSSL_free(utf8);
  };
  const X509_NAME* const subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at >= 0) add(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
  auto* const others = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(others); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(others, i);
    if (name->type == GEN_DNS) add(name->d.dNSName);
    if (name->type == GEN_URI) add(name->d.uniformResourceIdentifier);
  }
  GENERAL_NAMES_free(others);
  return names;
}

std::optional<std::string> ExpiryWarning(const CertificateLife& life, absl::Time now) {
  const auto date = [](absl::Time time) {
    return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
  };
  const std::string what = absl::StrCat("--", life.flag, ": ", life.file, ", ", life.subject, ": ");
  if (now < life.not_before) {
    return absl::StrCat(what, "not valid before ", date(life.not_before));
  }
  if (now >= life.not_after) {
    return absl::StrCat(what, "expired at ", date(life.not_after),
                        "; peers that verify it refuse the connection");
  }
  if (now < life.not_after - kWarnBefore) return std::nullopt;
  return absl::StrCat(what, "expires at ", date(life.not_after));
}

}  // namespace hearth
