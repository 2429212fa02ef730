#include "services/serving/server/server_runner.h"

#include <fcntl.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/rpc/transport_options.h"
#include "services/serving/logging.h"

namespace hearth {
namespace {

// After the drain timeout, running calls are cancelled and have this long to end.
constexpr absl::Duration kShutdownGrace = absl::Seconds(1);
// The server closes a unix-socket connection that has had no call for this long. The client
// connects again for its next call.
constexpr int kLocalIdleMs = 10 * 60 * 1000;

std::string DialAddress(const std::string& listen, int port) {
  if (absl::StartsWith(listen, "unix:")) return listen;
  return absl::StrCat(listen.substr(0, listen.rfind(':')), ":", port);
}

// Returns the options of an acceptor that hands its connections to the server of `builder`.
ConnectionAcceptor::Options AcceptorOptionsOf(
    const std::string& listen, bool speaks_tls, const ConnectionLimits& limits,
    Admission* admission, grpc::ServerBuilder* builder,
    std::shared_ptr<grpc::ServerCredentials> credentials) {
  using Builder = grpc::ServerBuilder::experimental_type;
  const std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor =
      builder->experimental().AddExternalConnectionAcceptor(
          Builder::ExternalConnectionType::FROM_FD, std::move(credentials));
  admission->connections().SetLimits(limits);
  ConnectionAcceptor::Options options;
  options.listen = listen;
  options.speaks_tls = speaks_tls;
  options.tracker = &admission->connections();
  const auto rate = std::make_shared<LogRate>();
  options.on_refused = [rate](const std::string& peer, const std::string& why) {
    LogSometimes(rate.get(), LogLevel::kWarning, "connection refused",
                 {{"peer", peer}, {"reason", why}});
  };
  options.take = [acceptor](int listener, int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listener;
    connection.fd = fd;
    acceptor->HandleNewConnection(&connection);
  };
  return options;
}

// Keeps a server without a port until the process ends. gRPC 1.51 ends its callback queue together
// with the last server or channel that has callbacks, and sometimes aborts when it does
// ("ref_counted.h: assertion failed: prior > 0"): about one stop in some hundreds on a loaded
// machine.
void KeepCallbackQueue() {
  static const grpc::Server* const kept = [] {
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(new grpc::CallbackGenericService());
    return builder.BuildAndStart().release();
  }();
  (void)kept;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServerRunner>> ServerRunner::Start(
    const std::string& listen, const std::vector<NamedService>& services, Admission* admission,
    std::shared_ptr<grpc::ServerCredentials> credentials, const ConnectionLimits& limits) {
  KeepCallbackQueue();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  TuneServerTransport(&builder, limits.all_bytes);
  if (absl::StartsWith(listen, "unix:")) {
    // gRPC closes idle connections of a unix socket: the acceptor does not know which of them have
    // calls.
    builder.AddChannelArgument("grpc.max_connection_idle_ms", kLocalIdleMs);
  }
  const bool speaks_tls = credentials != nullptr;
  if (!speaks_tls) credentials = grpc::InsecureServerCredentials();
  auto acceptor = ConnectionAcceptor::Open(
      AcceptorOptionsOf(listen, speaks_tls, limits, admission, &builder, std::move(credentials)));
  if (!acceptor.ok()) return acceptor.status();
  std::vector<std::string> names;
  for (const NamedService& named : services) {
    builder.RegisterService(named.service);
    names.push_back(named.name);
  }
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    return absl::UnavailableError(absl::StrCat("listen: gRPC cannot start on ", listen));
  }
  const std::string address = DialAddress(listen, (*acceptor)->port());
  std::unique_ptr<ServerRunner> runner(new ServerRunner(*std::move(acceptor), std::move(server),
                                                        address, std::move(names), admission));
  runner->SetServing(true);
  runner->acceptor_->Start();
  return runner;
}

ServerRunner::ServerRunner(std::unique_ptr<ConnectionAcceptor> acceptor,
                           std::unique_ptr<grpc::Server> server, std::string address,
                           std::vector<std::string> names, Admission* admission)
    : server_(std::move(server)),
      acceptor_(std::move(acceptor)),
      address_(std::move(address)),
      names_(std::move(names)),
      admission_(admission) {}

ServerRunner::~ServerRunner() {
  admission_->Close();
  acceptor_.reset();
  server_->Shutdown(absl::ToChronoTime(absl::Now() + kShutdownGrace));
  server_->Wait();
}

void ServerRunner::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  if (health == nullptr) return;
  health->SetServingStatus(serving);
  for (const std::string& name : names_) health->SetServingStatus(name, serving);
}

int ServerRunner::Drain(absl::Duration drain_timeout,
                        const std::function<void(absl::Time)>& flush) {
  SetServing(false);
  admission_->Close();
  const bool is_idle = admission_->WaitIdle(absl::Now() + drain_timeout);
  const int cut_off = is_idle ? 0 : admission_->running();
  // Cancel the calls that still run before the flush, because the flush would wait for them.
  if (cut_off > 0) server_->Shutdown(absl::ToChronoTime(absl::Now()));
  if (flush) flush(absl::Now() + kFlushTimeout);
  server_->Shutdown(absl::ToChronoTime(absl::Now() + kShutdownGrace));
  return cut_off;
}

absl::Status WriteFileWhole(const std::string& path, const std::string& text) {
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  const std::string line = text + "\n";
  // Unlink first, so that a new file is created: in a folder that other users may write to, the
  // name may be their link to a file of this user.
  unlink(temporary.c_str());
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file >= 0) {
    const ssize_t written = write(file, line.data(), line.size());
    const bool is_whole = written == static_cast<ssize_t>(line.size());
    if (close(file) == 0 && is_whole && std::rename(temporary.c_str(), path.c_str()) == 0) {
      return absl::OkStatus();
    }
  }
  const std::string reason = std::strerror(errno);
  if (file >= 0) unlink(temporary.c_str());
  return absl::UnavailableError(absl::StrCat(path, ": cannot be written: ", reason));
}

}  // namespace hearth
