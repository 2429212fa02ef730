#include "services/rpc/client_access.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/support/client_interceptor.h>

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "cache_store/base/reread_file.h"
#include "services/rpc/access_files.h"
#include "services/rpc/call_metadata.h"

namespace hearth {
namespace {

constexpr unsigned int kRereadSeconds = 1;

absl::StatusOr<std::string> ReadToken(const std::string& flag, const std::string& path,
                                      bool pipes_too) {
  absl::StatusOr<std::string> text = ReadFlagFile(flag, path, pipes_too);
  if (!text.ok()) return text.status();
  std::string token(absl::StripAsciiWhitespace(*text));
  if (IsTokenText(token)) return token;
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": ", path, " must hold exactly one token of printable characters"));
}

// Sends the token as metadata. gRPC's own call credentials would not send it without TLS, over
// loopback or a unix socket.
class TokenSender final : public grpc::experimental::Interceptor {
 public:
  explicit TokenSender(std::shared_ptr<RereadFile> token) : token_(std::move(token)) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(Point::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization",
                                                 absl::StrCat("Bearer ", token_->Get().value()));
    }
    methods->Proceed();
  }

 private:
  const std::shared_ptr<RereadFile> token_;
};

class TokenSenders final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenSenders(std::shared_ptr<RereadFile> token) : token_(std::move(token)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new TokenSender(token_);
  }

 private:
  const std::shared_ptr<RereadFile> token_;
};

// Returns credentials that read the changed files again for each later handshake, but keep the
// previous files if a key does not match its certificate.
std::shared_ptr<grpc::ChannelCredentials> RereadingCredentials(const ClientAccess& access) {
  namespace tls = grpc::experimental;
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<tls::FileWatcherCertificateProvider>(
      access.tls_key, access.tls_cert, access.tls_ca, kRereadSeconds));
  options.watch_root_certs();
  if (!access.tls_cert.empty()) options.watch_identity_key_cert_pairs();
  return tls::TlsCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> TransportOf(const ClientAccess& access) {
  const std::string flag = access.prefix + "tls-";
  if (access.tls_cert.empty() != access.tls_key.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, "cert and --", flag,
                                                   "key must be given together; one is missing"));
  }
  if (access.tls_ca.empty()) {
    if (access.tls_cert.empty()) return grpc::InsecureChannelCredentials();
    return absl::InvalidArgumentError(absl::StrCat(
        "--", flag, "cert needs --", flag, "ca, the authority of the server's certificate"));
  }
  absl::StatusOr<TlsTexts> texts =
      ReadTlsFiles({flag + "cert", access.tls_cert, flag + "key", access.tls_key, flag + "ca",
                    access.tls_ca, !access.rereads});
  if (!texts.ok()) return texts.status();
  if (access.rereads) return RereadingCredentials(access);
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = std::move(texts->authority);
  options.pem_cert_chain = std::move(texts->certificate);
  options.pem_private_key = std::move(texts->key);
  return grpc::SslCredentials(options);
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> ConnectAs(const ClientAccess& access,
                                                         const std::string& address,
                                                         const grpc::ChannelArguments& arguments) {
  auto credentials = TransportOf(access);
  if (!credentials.ok()) return credentials.status();
  if (access.token_file.empty()) {
    return grpc::CreateCustomChannel(address, *credentials, arguments);
  }
  const std::string flag = access.prefix + "token-file";
  if (access.tls_ca.empty() && !access.plaintext_tokens && !StaysOnHost(address)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--", flag, ": the token would reach ", address, " in clear text; give --", access.prefix,
        "tls-ca, or --", access.prefix, "plaintext-tokens on if the network is encrypted"));
  }
  // Reads the token again when its file changes, because Kubernetes renews tokens. A pipe is read
  // once.
  const std::string path = access.token_file;
  const auto read = [flag, path, pipes_too = !access.rereads]() mutable {
    return ReadToken(flag, path, std::exchange(pipes_too, false));
  };
  const auto token = std::make_shared<RereadFile>(std::vector<std::string>{path}, read, nullptr);
  if (const auto first = token->Get(); !first.ok()) return first.status();
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> senders;
  senders.push_back(std::make_unique<TokenSenders>(token));
  return grpc::experimental::CreateCustomChannelWithInterceptors(address, *credentials, arguments,
                                                                 std::move(senders));
}

std::string TlsMismatch(absl::string_view error, const ClientAccess& access) {
  const std::string text = absl::AsciiStrToLower(error);
  const std::string flag = absl::StrCat("--", access.prefix, "tls-ca");
  const auto says = [&text](absl::string_view what) { return absl::StrContains(text, what); };
  if (access.tls_ca.empty()) {
    // Hearth's servers send GOAWAY to a client without TLS, and close the connection. gRPC does not
    // pass on the text of the GOAWAY. If it sees the end of the connection first, it reports only
    // the end.
    const char* const end = says("goaway received")    ? "the server ended the connection at once"
                            : says("transport closed") ? "the server ended the connection"
                                                       : nullptr;
    return end == nullptr ? ""
                          : absl::StrCat(end, "; if it uses TLS, pass ", flag,
                                         ", the authority of its certificate");
  }
  if (says("wrong version number") || says("wrong_version_number") || says("http request") ||
      says("alert protocol version") || says("packet length too long")) {
    return absl::StrCat("the server does not use TLS; leave out ", flag,
                        ", or start the server with --tls-cert");
  }
  if (says("certificate verify failed")) {
    return absl::StrCat("the server's certificate was not signed by the authority in ", flag,
                        ", or is not valid now (", error, ")");
  }
  if (says("peer name") || says("hostname")) {
    return absl::StrCat("the server's certificate is not valid for this address (", error, ")");
  }
  return says("handshake") || says("ssl") ? absl::StrCat("TLS failed: ", error) : "";
}

}  // namespace hearth
