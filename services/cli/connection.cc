#include "services/cli/connection.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <grpcpp/client_context.h>
#include <netdb.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/inference.grpc.pb.h"
#include "services/cli/command_line.h"
#include "services/cli/console.h"
#include "services/rpc/client_access.h"
#include "services/rpc/proto_conversion.h"
#include "services/rpc/status_conversion.h"
#include "services/rpc/transport_options.h"

namespace hearth {
namespace {

const char* KindName(PeerKind kind) { return kind == PeerKind::kWorker ? "worker" : "store"; }

constexpr char kWorkerVariable[] = "HEARTHCTL_WORKER";
// the text of gRPC's error for a message over the size limit
constexpr char kTooLarge[] = "Sent message larger than max";

// Time limit of one connection attempt. A busy server may take seconds to answer, but a refused
// connection fails at once.
constexpr absl::Duration kAttempt = absl::Seconds(10);

// Returns an error if `text` is not an address, else "".
std::string CheckAddress(const std::string& text) {
  const std::string wrong = absl::StrCat("must be host:port or unix:PATH; got \"", text, "\"");
  for (const char* local : {"unix:", "unix-abstract:"}) {
    if (absl::StartsWith(text, local)) return text.size() > std::strlen(local) ? "" : wrong;
  }
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || colon == 0) return wrong;
  if (!absl::SimpleAtoi(text.substr(colon + 1), &port) || port == 0 || port > 65535) return wrong;
  return "";
}

// Returns gRPC's reason why the channel cannot connect. Attempts to connect once more, for at most
// one second.
std::string WhyNotConnected(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(1)));
  v1::GetModelResponse response;
  return v1::Inference::NewStub(channel)->GetModel(&context, {}, &response).error_message();
}

// Returns an error if the host name cannot be resolved, else "".
std::string UnknownHost(const std::string& address) {
  if (absl::StartsWith(address, "unix")) return "";
  std::string host = address.substr(0, address.rfind(':'));
  if (absl::StartsWith(host, "[")) {
    host = host.substr(1, host.size() - 2);
  } else if (absl::StrContains(host, ":")) {
    return "";  // more than one colon: a URI with a scheme that gRPC knows, such as dns:
  }
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, nullptr, &found);
  if (error == 0) ::freeaddrinfo(found);
  return error == 0 ? ""
                    : absl::StrCat("unknown host name ", host, " (", ::gai_strerror(error), ")");
}

std::string Advice(const PeerFlags& flags) {
  if (std::string unknown = UnknownHost(flags.address); !unknown.empty()) return unknown;
  return flags.kind == PeerKind::kWorker
             ? absl::StrCat("start one with hearth-worker --model DIR --listen ", flags.address,
                            ", or pass --worker ADDR")
             : absl::StrCat("start one with hearth-store --data-dir DIR --listen ", flags.address,
                            ", or pass --store ADDR");
}

}  // namespace

void PeerFlags::Declare(CLI::App* command) {
  address = kind == PeerKind::kWorker ? kDefaultWorkerAddress : kDefaultStoreAddress;
  const std::string name = KindName(kind);
  const std::string variable = kind == PeerKind::kWorker ? kWorkerVariable : "HEARTHCTL_STORE";
  command->add_option("--" + name, address, "address of the " + name + ", host:port or unix:PATH")
      ->envname(variable)
      ->check(CheckAddress)
      ->capture_default_str();
  DeclareWait(command);
  if (kind == PeerKind::kStore) {
    command
        ->add_option("--tenant", tenant,
                     "tenant to act for, if your role may name another (default: your own)")
        ->envname("HEARTHCTL_TENANT")
        ->group("Access");
  }
  DeclareAccess(command);
}

void PeerFlags::DeclareSeveral(CLI::App* command, std::vector<std::string>* addresses) {
  *addresses = {kDefaultWorkerAddress};
  command
      ->add_option("--worker", *addresses,
                   "address of a worker, host:port or unix:PATH; repeat or comma-separate to add "
                   "workers (chat: for failover)")
      ->envname(kWorkerVariable)
      ->check(CheckAddress)
      ->allow_extra_args(false)
      ->delimiter(',')
      ->capture_default_str();
  DeclareWait(command);
  DeclareAccess(command);
}

void PeerFlags::DeclareWait(CLI::App* command) {
  AddDuration(
      command, "--wait", [this](absl::Duration given) { wait = given; },
      "wait up to this long for the server to listen: 30s, 500ms (default: do not wait)");
}

void PeerFlags::DeclareAccess(CLI::App* command) {
  const auto add = [command](const char* flag, std::string* value, const char* variable,
                             const char* help) {
    command->add_option(flag, *value, help)->envname(variable)->group("Access");
  };
  ClientAccess* to = access.get();
  add("--tls-ca", &to->tls_ca, "HEARTHCTL_TLS_CA",
      "connect by TLS; authority (PEM) that signed the server's certificate");
  add("--tls-cert", &to->tls_cert, "HEARTHCTL_TLS_CERT", "your certificate (PEM)");
  add("--tls-key", &to->tls_key, "HEARTHCTL_TLS_KEY", "private key of --tls-cert (PEM)");
  add("--token-file", &to->token_file, "HEARTHCTL_TOKEN_FILE", "file with your token");
  command
      ->add_flag("--plaintext-tokens", to->plaintext_tokens,
                 "send the token to another host without TLS")
      ->group("Access");
}

CLI::Option* PeerFlags::DeclareOptional(CLI::App* command, const std::string& why) {
  const std::string name = KindName(kind);
  return command->add_option("--" + name, address, "address of the " + name + ": " + why)
      ->check(CheckAddress);
}

void KeepLibrariesQuiet() {
  google::protobuf::SetLogHandler(nullptr);
  if (std::getenv("GRPC_VERBOSITY") != nullptr) return;
  gpr_set_log_function([](gpr_log_func_args*) {});
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const PeerFlags& flags) {
  grpc::ChannelArguments arguments =
      ClientTransport(static_cast<int>(absl::ToInt64Milliseconds(kAttempt)));
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  auto connected = ConnectAs(*flags.access, flags.address, arguments);
  if (!connected.ok()) return connected.status();
  const std::shared_ptr<grpc::Channel> channel = *std::move(connected);
  const absl::Time start = absl::Now();
  const absl::Time last = start + std::max(flags.wait, kAttempt);
  for (;;) {
    const grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return channel;
    const absl::Time now = absl::Now();
    const bool refused = state == GRPC_CHANNEL_TRANSIENT_FAILURE && now >= start + flags.wait;
    if (refused || now >= last || state == GRPC_CHANNEL_SHUTDOWN) break;
    channel->WaitForStateChange(state, absl::ToChronoTime(last));
  }
  const std::string tls = TlsMismatch(WhyNotConnected(channel), *flags.access);
  if (!tls.empty()) {
    return NotReached(absl::StrCat(KindName(flags.kind), " at ", flags.address, ": ", tls));
  }
  return NotReached(
      absl::StrCat("no ", KindName(flags.kind), " at ", flags.address, ": ", Advice(flags)));
}

absl::Status RpcFailure(const grpc::Status& status, const PeerFlags& peer) {
  const absl::Status converted = FromGrpcStatus(status);
  // If the server does not have this service, gRPC answers UNIMPLEMENTED without a message.
  if (absl::IsUnimplemented(converted) && converted.message().empty()) {
    const bool worker = peer.kind == PeerKind::kWorker;
    return absl::UnimplementedError(
        absl::StrCat("the server at ", peer.address, " is not a ", KindName(peer.kind),
                     " that knows this call: it may be a ", worker ? "store" : "worker",
                     ", another program, or an older version; pass --", KindName(peer.kind),
                     " ADDR (usually port ", worker ? "7070)" : "7080)"));
  }
  if (absl::StartsWith(converted.message(), kTooLarge)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the request is too large: a ", KindName(peer.kind), " takes at most ",
                     kMaxMessageBytes >> 20, " MiB; ", converted.message()));
  }
  // A client without TLS cannot tell at connection time that the server uses TLS: the first call
  // fails.
  const std::string tls =
      absl::IsUnavailable(converted) ? TlsMismatch(converted.message(), *peer.access) : "";
  const std::string name = absl::StrCat(KindName(peer.kind), " at ", peer.address);
  return tls.empty() ? About(name, converted) : NotReached(absl::StrCat(name, ": ", tls));
}

}  // namespace hearth
