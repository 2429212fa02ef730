#include "services/hearthctl/tls_mismatch.h"

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace hearth {

std::string WhyNotConnected(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(1)));
  grpc::CompletionQueue queue;
  grpc::ByteBuffer request, response;
  grpc::Status status;
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return status.error_message();
}

std::string TlsMismatch(absl::string_view error, bool has_tls) {
  const std::string text = absl::AsciiStrToLower(error);
  const auto says = [&text](absl::string_view what) { return absl::StrContains(text, what); };
  if (!has_tls) {
    // How a server of ours shows out who has no TLS; gRPC keeps its words to itself.
    return says("goaway received") ? "it ended the connection at once; where it speaks TLS, pass "
                                     "--tls-ca, the authority of its certificate"
                                   : "";
  }
  if (says("wrong version number") || says("wrong_version_number") || says("http request") ||
      says("alert protocol version") || says("packet length too long")) {
    return "it speaks no TLS; leave out --tls-ca, or give the server --tls-cert";
  }
  if (says("certificate verify failed")) {
    return absl::StrCat(
        "its certificate was not signed by the authority in --tls-ca, or is not "
        "valid now (",
        error, ")");
  }
  if (says("peer name") || says("hostname")) {
    return absl::StrCat("its certificate is not for this address (", error, ")");
  }
  return says("handshake") || says("ssl") ? absl::StrCat("TLS failed: ", error) : "";
}

}  // namespace hearth
