#include "services/rpc/tls_mismatch.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace hearth {

std::string TlsMismatch(absl::string_view error, const ClientAccess& access) {
  const std::string text = absl::AsciiStrToLower(error);
  const std::string flag = absl::StrCat("--", access.prefix, "tls-ca");
  const auto says = [&text](absl::string_view what) { return absl::StrContains(text, what); };
  if (access.tls_ca.empty()) {
    // Our servers end a connection without TLS so; gRPC does not pass their message on, and tells
    // of the end alone where it saw that first.
    const char* const end = says("goaway received")    ? "it ended the connection at once"
                            : says("transport closed") ? "the connection ended"
                                                       : nullptr;
    return end == nullptr ? ""
                          : absl::StrCat(end, "; where it speaks TLS, pass ", flag,
                                         ", the authority of its certificate");
  }
  if (says("wrong version number") || says("wrong_version_number") || says("http request") ||
      says("alert protocol version") || says("packet length too long")) {
    return absl::StrCat("it speaks no TLS; leave out ", flag, ", or give the server --tls-cert");
  }
  if (says("certificate verify failed")) {
    return absl::StrCat("its certificate was not signed by the authority in ", flag,
                        ", or is not valid now (", error, ")");
  }
  if (says("peer name") || says("hostname")) {
    return absl::StrCat("its certificate is not for this address (", error, ")");
  }
  return says("handshake") || says("ssl") ? absl::StrCat("TLS failed: ", error) : "";
}

}  // namespace hearth
