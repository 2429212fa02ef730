#include "services/serving/door/peer_name.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace hearth {
namespace {

// Around an address in gRPC's name of a peer.
constexpr absl::string_view kIpv6Begin = "ipv6:%5B", kIpv6End = "%5D";

}  // namespace

std::string PeerName(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", ntohs(v4.sin_port));
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", ntohs(v6.sin6_port));
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  return absl::StrCat(kIpv6Begin, text, kIpv6End, ":", ntohs(v6.sin6_port));
}

std::string HostOfPeer(const std::string& peer) {
  std::string host = peer.substr(0, peer.rfind(':'));
  absl::string_view address = host;
  in6_addr parsed;
  if (!absl::ConsumePrefix(&address, kIpv6Begin) || !absl::ConsumeSuffix(&address, kIpv6End) ||
      inet_pton(AF_INET6, std::string(address).c_str(), &parsed) != 1) {
    return host;
  }
  std::fill(parsed.s6_addr + 8, parsed.s6_addr + 16, 0);
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, &parsed, text, sizeof(text));
  return absl::StrCat(kIpv6Begin, text, kIpv6End, "/64");
}

}  // namespace hearth
