// Connects to a worker or a store, and calls it. Error messages name the server and say what to do.
//
// Thread safety: pure functions. Ownership: the returned channel owns the connection.
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
  // tenant to act for, for stores only; empty: the tenant of the caller's token
  std::string tenant;
  // TLS files and token. Shared, because a command that calls two servers uses the same for each.
  std::shared_ptr<ClientAccess> access = std::make_shared<ClientAccess>();

  // Declares --worker or --store, --wait, and the flags for TLS and tokens.
  void Declare(CLI::App* command);
  // Declares the flags of Declare for several workers: --worker may be repeated and fills
  // `addresses`; the member `address` stays unset.
  void DeclareSeveral(CLI::App* command, std::vector<std::string>* addresses);
  // Declares --worker or --store as an optional flag. If the flag is not given, `address` does not
  // change.
  CLI::Option* DeclareOptional(CLI::App* command, const std::string& why);

 private:
  void DeclareWait(CLI::App* command);
  void DeclareAccess(CLI::App* command);
};

// Silences the log lines of gRPC and protobuf, which name source files of these libraries: each
// program reports an error itself, in one line. Has no effect on gRPC if GRPC_VERBOSITY is set.
void KeepLibrariesQuiet();

// Returns the channel after the connection is established, so that measurements do not include the
// time to connect. kUnavailable: no server answered within `wait`, or, if `wait` is 0, the first
// attempt failed.
absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const PeerFlags& flags);

// Returns the error of an RPC. The message begins with the kind and address of the server.
absl::Status RpcFailure(const grpc::Status& status, const PeerFlags& peer);

// Makes one RPC and returns its response. Example: Call(stub, &v1::Inference::Stub::Tokenize,
// request, worker).
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

// Connects to the server, makes one RPC and returns its response.
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
