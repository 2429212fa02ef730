// Reads and checks the files and addresses in flags of access, for both ends of a connection.
// Certificates and keys are checked before TLS gets them: an error names the file and what is
// wrong, where a handshake would fail with a number.
//
// Thread safety: pure functions apart from reading.
#ifndef HEARTH_SERVICES_RPC_ACCESS_FILES_H_
#define HEARTH_SERVICES_RPC_ACCESS_FILES_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace hearth {

// Whether only this host sees the bytes sent there: a unix socket, or a loopback address.
bool StaysOnHost(const std::string& address);

// The bytes of a flag's small file (ReadBoundedFile). The error names the flag, also for an empty
// file.
absl::StatusOr<std::string> ReadFlagFile(const std::string& flag, const std::string& path,
                                         bool pipes_too = false);

// Flags without their dashes, and the files they name; empty: not given.
struct TlsFiles {
  std::string certificate_flag, certificate;  // a chain; the first is one's own
  std::string key_flag, key;
  std::string authority_flag, authority;
  bool pipes_too = false;  // they need not be regular files
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

// The warning that a certificate has expired or will soon; none while it is valid for long enough.
std::optional<std::string> ExpiryWarning(const CertificateLife& life, absl::Time now);

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_ACCESS_FILES_H_
