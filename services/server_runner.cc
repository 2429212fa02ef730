#include "services/server_runner.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/transport_options.h"

namespace hearth {
namespace {

// After the drain: what still runs gets this long to notice that it is cancelled.
constexpr absl::Duration kShutdownGrace = absl::Seconds(1);

std::string DialAddress(const std::string& listen, int port) {
  if (absl::StartsWith(listen, "unix:")) return listen;
  return absl::StrCat(listen.substr(0, listen.rfind(':')), ":", port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServerRunner>> ServerRunner::Start(
    const std::string& listen, const std::vector<NamedService>& services, CallGate* gate,
    std::shared_ptr<grpc::ServerCredentials> credentials) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  TuneServerTransport(&builder);
  // Two servers on one port would each get half of the callers.
  builder.AddChannelArgument("grpc.so_reuseport", 0);
  int port = 0;
  if (credentials == nullptr) credentials = grpc::InsecureServerCredentials();
  builder.AddListeningPort(listen, credentials, &port);
  std::vector<std::string> names;
  for (const NamedService& named : services) {
    builder.RegisterService(named.service);
    names.push_back(named.name);
  }
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("listen: cannot listen on ", listen,
                     "; is the address this machine's, and the port free?"));
  }
  std::unique_ptr<ServerRunner> runner(
      new ServerRunner(std::move(server), DialAddress(listen, port), std::move(names), gate));
  runner->SetServing(true);
  return runner;
}

ServerRunner::ServerRunner(std::unique_ptr<grpc::Server> server, std::string address,
                           std::vector<std::string> names, CallGate* gate)
    : server_(std::move(server)),
      address_(std::move(address)),
      names_(std::move(names)),
      gate_(gate) {}

ServerRunner::~ServerRunner() {
  gate_->Close();
  server_->Shutdown(absl::ToChronoTime(absl::Now() + kShutdownGrace));
  server_->Wait();
}

void ServerRunner::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  if (health == nullptr) return;
  health->SetServingStatus(serving);
  for (const std::string& name : names_) health->SetServingStatus(name, serving);
}

void ServerRunner::Drain(absl::Duration drain_timeout,
                         const std::function<void(absl::Time)>& flush) {
  SetServing(false);
  gate_->Close();
  gate_->WaitIdle(absl::Now() + drain_timeout);
  if (flush) flush(absl::Now() + kFlushTimeout);
  server_->Shutdown(absl::ToChronoTime(absl::Now() + kShutdownGrace));
}

absl::Status WriteFileWhole(const std::string& path, const std::string& text) {
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  {
    std::ofstream file(temporary, std::ios::trunc);
    file << text << '\n';
    file.flush();
    if (!file) {
      return absl::UnavailableError(
          absl::StrCat(path, ": cannot be written: ", std::strerror(errno)));
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    std::remove(temporary.c_str());
    return absl::UnavailableError(absl::StrCat(path, ": cannot be written: ", reason));
  }
  return absl::OkStatus();
}

}  // namespace hearth
