// Files of certificates and keys that flags name, looked at before TLS gets them: an error says
// which file is wrong and how, where the handshakes would fail with numbers.
//
// Thread safety: pure functions apart from reading.
#ifndef HEARTH_SERVICES_RPC_TLS_FILES_H_
#define HEARTH_SERVICES_RPC_TLS_FILES_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace hearth {

// Flags without their dashes, and the files they name; empty: not given.
struct TlsFiles {
  std::string certificate_flag, certificate;  // a chain; the first is one's own
  std::string key_flag, key;
  std::string authority_flag, authority;
};

struct CertificateLife {
  std::string flag, file, subject;
  absl::Time not_before, not_after;
};

struct TlsTexts {
  std::string certificate, key, authority;  // PEM
  std::vector<CertificateLife> lives;       // of all certificates in the files
};

// kNotFound, kInvalidArgument: name the flag and the file.
absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files);

// The warning that a certificate is due now; none while it is good for a while yet.
std::optional<std::string> ExpiryWarning(const CertificateLife& life, absl::Time now);

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_TLS_FILES_H_
