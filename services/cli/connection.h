// Connects to a worker or a store and calls it, with errors that name the peer and what to do.
//
// Thread safety: pure functions. Ownership: the channel keeps the connection.
#ifndef HEARTH_SERVICES_CLI_CONNECTION_H_
#define HEARTH_SERVICES_CLI_CONNECTION_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/rpc/client_access.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace hearth {

inline constexpr char kDefaultWorkerAddress[] = "127.0.0.1:7070";
inline constexpr char kDefaultStoreAddress[] = "127.0.0.1:7080";

enum class PeerKind { kWorker, kStore };

struct PeerFlags {
  PeerKind kind = PeerKind::kWorker;
  std::string address;
  absl::Duration wait;
  std::string tenant;  // of a store; empty: the caller's own
  // Both peers of a command with two share it.
  std::shared_ptr<ClientAccess> access = std::make_shared<ClientAccess>();

  // Declares --worker or --store, --wait, and TLS and token.
  void Declare(CLI::App* command);
  // The same for several workers, of which `address` is none: --worker may be given again.
  void DeclareSeveral(CLI::App* command, std::vector<std::string>* addresses);
  // Declares it as optional: without it `address` stays as it is.
  CLI::Option* DeclareOptional(CLI::App* command, const std::string& why);

 private:
  void DeclareWait(CLI::App* command);
  void DeclareAccess(CLI::App* command);
};

// Programs say failures themselves, in one line. gRPC's own log lines, which name its sockets and
// source files, come only where its variable asks for them.
void KeepLibrariesQuiet();

// Returns once connected, so that no measurement includes the connection. kUnavailable when nobody
// answers for `wait` (0: at the first refusal).
absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const PeerFlags& flags);

// The error of an RPC, with the peer's kind and address in front of the message.
absl::Status RpcFailure(const grpc::Status& status, const PeerFlags& peer);

// The peer's answer to one call: Call(stub, &v1::Inference::Stub::Tokenize, request, worker).
template <typename Stub, typename Request, typename Response>
absl::StatusOr<Response> Call(Stub* stub,
                              grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                           Response*),
                              const Request& request, const PeerFlags& peer) {
  grpc::ClientContext context;
  Response response;
  const grpc::Status status = (stub->*method)(&context, request, &response);
  if (!status.ok()) return RpcFailure(status, peer);
  return response;
}

// The same over a new connection.
template <typename Stub, typename Request, typename Response>
absl::StatusOr<Response> Ask(const PeerFlags& peer,
                             grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                          Response*),
                             const Request& request) {
  auto channel = Connect(peer);
  if (!channel.ok()) return channel.status();
  Stub stub(*std::move(channel));
  return Call(&stub, method, request, peer);
}

}  // namespace hearth

#endif  // HEARTH_SERVICES_CLI_CONNECTION_H_
