// ServerRunner: runs one gRPC server: listening, health, reflection, address file, drain.
//
// Health is answered for the whole server ("") and for each service by name.
// Thread safety: call Start and Drain from the main thread.
// Ownership: services and admission must outlive the runner.
#ifndef HEARTH_SERVICES_SERVING_SERVER_SERVER_RUNNER_H_
#define HEARTH_SERVICES_SERVING_SERVER_SERVER_RUNNER_H_

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/serving/access/connection_acceptor.h"
#include "services/serving/calls/admission.h"

namespace hearth {

// Time limit of Drain's `flush`, in which the last publishes reach the store.
inline constexpr absl::Duration kFlushTimeout = absl::Seconds(5);

struct NamedService {
  std::string name;  // for example "hearth.v1.CacheStore"
  grpc::Service* service = nullptr;
};

class ServerRunner {
 public:
  // Starts the server; it accepts calls when Start returns. kUnavailable names the address if
  // listening fails. `credentials` null: no TLS. `limits`: limits of connections; for a unix socket
  // only the number of connections is limited.
  static absl::StatusOr<std::unique_ptr<ServerRunner>> Start(
      const std::string& listen, const std::vector<NamedService>& services, Admission* admission,
      std::shared_ptr<grpc::ServerCredentials> credentials = nullptr,
      const ConnectionLimits& limits = ConnectionLimits());
  ~ServerRunner();

  // Returns the address to which clients connect.
  const std::string& address() const { return address_; }

  // Reports NOT_SERVING to health checks, and refuses new calls. Running calls may finish until
  // `drain_timeout` and are then cancelled. Then calls `flush`, which may take kFlushTimeout.
  // Returns the number of cancelled calls.
  int Drain(absl::Duration drain_timeout, const std::function<void(absl::Time deadline)>& flush);

 private:
  ServerRunner(std::unique_ptr<ConnectionAcceptor> acceptor, std::unique_ptr<grpc::Server> server,
               std::string address, std::vector<std::string> names, Admission* admission);
  void SetServing(bool serving);

  const std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;  // hands connections to server_
  const std::string address_;
  const std::vector<std::string> names_;
  Admission* const admission_;
};

// Replaces the file by `text` and a newline, atomically: a reader sees the old or the new content.
absl::Status WriteFileWhole(const std::string& path, const std::string& text);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_SERVER_SERVER_RUNNER_H_
