// ServerCertificates: a server's TLS certificates and authorities, which can be replaced while the
// server runs.
//
// Thread safety: all methods from any thread; gRPC asks for the current files at each handshake.
// Ownership: must outlive the server that uses its credentials. Invariants: (1) invalid files
// change nothing; (2) open connections keep their certificates.
#ifndef HEARTH_SERVICES_SERVING_ACCESS_SERVER_CERTIFICATES_H_
#define HEARTH_SERVICES_SERVING_ACCESS_SERVER_CERTIFICATES_H_

#include <grpc/grpc_security.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "cache_store/base/repeating_thread.h"
#include "services/rpc/access_files.h"

namespace hearth {

class ServerCertificates {
 public:
  // Reads the files; an error names the flag and the file. Logs certificates that have expired or
  // soon will, now and once a day. Without an authority, clients are not asked for certificates.
  static absl::StatusOr<std::unique_ptr<ServerCertificates>> Open(const TlsFiles& files);

  // Reads the files that Open has read again. Later handshakes use them.
  absl::Status Reload() ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<grpc::ServerCredentials> credentials();
  // Returns the current texts. The pointer changes only when the files are read again.
  std::shared_ptr<const TlsTexts> texts() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return texts_;
  }

 private:
  explicit ServerCertificates(const TlsFiles& files) : files_(files) {}
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config);
  void WarnOfExpiry() ABSL_LOCKS_EXCLUDED(mutex_);

  const TlsFiles files_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const TlsTexts> texts_ ABSL_GUARDED_BY(mutex_);
  bool is_new_ ABSL_GUARDED_BY(mutex_) = false;  // gRPC has not fetched texts_ yet
  std::unique_ptr<RepeatingThread> warner_;      // last member: its thread uses the other members
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_ACCESS_SERVER_CERTIFICATES_H_
