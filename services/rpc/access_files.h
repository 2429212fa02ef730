// Reads and checks the files and addresses in the flags for TLS and tokens, for clients and
// servers. Certificates and keys are checked before TLS uses them, so that an error names the file
// and the fault; a failed handshake would only give a number.
//
// Thread safety: pure functions apart from reading files.
#ifndef HEARTH_SERVICES_RPC_ACCESS_FILES_H_
#define HEARTH_SERVICES_RPC_ACCESS_FILES_H_

#include <openssl/x509.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace hearth {

// Whether bytes sent to `address` stay on this host: a unix socket, or a loopback address.
bool StaysOnHost(const std::string& address);

// Returns the bytes of a small file that a flag names (ReadBoundedFile). An empty file is an error.
// An error names the flag.
absl::StatusOr<std::string> ReadFlagFile(const std::string& flag, const std::string& path,
                                         bool pipes_too = false);

// TLS files, each with the name of its flag (without dashes). An empty file name: the flag was not
// given.
struct TlsFiles {
  // certificate chain; the first certificate is this process's own
  std::string certificate_flag, certificate;
  std::string key_flag, key;
  std::string authority_flag, authority;
  bool pipes_too = false;  // accept pipes, not only regular files
};

struct CertificateLife {
  std::string flag, file, subject;
  absl::Time not_before, not_after;
};

struct TlsTexts {
  std::string certificate, key, authority;  // texts of the PEM files
  std::vector<CertificateLife> lives;       // validity of each certificate in the files
};

// Reads and checks the files. kNotFound or kInvalidArgument names the flag and the file.
absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files);

// Returns the common name of a certificate, then its alternative names of DNS and URI.
std::vector<std::string> CertificateNames(const X509* certificate);

// Returns a warning if the certificate is not valid yet, expired, or expires soon; else nullopt.
std::optional<std::string> ExpiryWarning(const CertificateLife& life, absl::Time now);

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_ACCESS_FILES_H_
