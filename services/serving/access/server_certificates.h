// ServerCertificates: a server's certificates and authorities for TLS, which can be replaced while
// it runs.
//
// Thread safety: all methods from any thread; gRPC asks for the current files at each handshake.
// Ownership: outlives the server that has its credentials. Invariants: (1) invalid files change
// nothing; (2) open connections stay as they are.
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
  // Reads the files; an error names the flag and the file. Logs which certificates have expired or
  // are about to, now and once a day. Without an authority clients are not asked for certificates.
  static absl::StatusOr<std::unique_ptr<ServerCertificates>> Open(const TlsFiles& files);

  // Reads the same files again, for later handshakes.
  absl::Status Reload() ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<grpc::ServerCredentials> credentials();
  // The same pointer until they are read anew.
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
  bool is_new_ ABSL_GUARDED_BY(mutex_) = false;  // gRPC has not got it yet
  std::unique_ptr<RepeatingThread> warner_;      // last: it uses the others
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_ACCESS_SERVER_CERTIFICATES_H_
