// ServerRunner: runs one gRPC server: listening, health, reflection, address file, drain.
//
// Health is answered for the whole server ("") and for each service by name.
// Thread safety: Start and Drain from one thread, the main one.
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

// Publishes of finished requests have this long to reach the store.
inline constexpr absl::Duration kFlushTimeout = absl::Seconds(5);

struct NamedService {
  std::string name;  // "hearth.v1.CacheStore"
  grpc::Service* service = nullptr;
};

class ServerRunner {
 public:
  // Serves when it returns. kUnavailable names the address that cannot be listened on.
  // `credentials` null: no TLS. `limits`: of connections; for a unix socket only their number.
  static absl::StatusOr<std::unique_ptr<ServerRunner>> Start(
      const std::string& listen, const std::vector<NamedService>& services, Admission* admission,
      std::shared_ptr<grpc::ServerCredentials> credentials = nullptr,
      const ConnectionLimits& limits = ConnectionLimits());
  ~ServerRunner();

  // As clients dial it: "127.0.0.1:41237", "unix:PATH".
  const std::string& address() const { return address_; }

  // Health says NOT_SERVING, new calls are refused, running ones may finish until `drain_timeout`
  // and are cancelled then; `flush`, called when no call runs, may take kFlushTimeout. Returns the
  // number of calls that were cut off.
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

// Writes `text` and a newline atomically: a reader sees nothing or all of it.
absl::Status WriteFileWhole(const std::string& path, const std::string& text);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_SERVER_SERVER_RUNNER_H_
