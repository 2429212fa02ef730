// The names and addresses of an HTTP server and of its callers: which Host a request may name, and
// which addresses are one caller.
//
// Thread safety: all functions and const methods from any thread.
#ifndef HEARTH_SERVICES_SERVING_HTTP_HTTP_NAMES_H_
#define HEARTH_SERVICES_SERVING_HTTP_HTTP_NAMES_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace hearth {

// A block of IP addresses.
class Cidr {
 public:
  // "10.0.0.0/8", "fd00::/8", "192.0.2.7". kInvalidArgument says what is valid.
  static absl::StatusOr<Cidr> Parse(absl::string_view text);
  // Comma-separated blocks; "" is none.
  static absl::StatusOr<std::vector<Cidr>> ParseList(absl::string_view text);

  // `address` has no port. Returns false if it is no address.
  bool Contains(absl::string_view address) const;

 private:
  std::array<uint8_t, 16> bytes_ = {};  // an IPv4 address as ::ffff:a.b.c.d
  int bits_ = 128;
};

// The caller that an address belongs to, for limits per address: an IPv4 address; an IPv6 network
// of 64 bits, because one host can use all of its addresses.
std::string CallerOfAddress(absl::string_view address);

// "localhost:8000" without its port; "[::1]:80" without port and brackets; in lower case.
std::string HostOf(absl::string_view authority);

// Which Host a request may name: a page of another site whose name leads to this server (DNS
// rebinding) names that site.
class HostRule {
 public:
  // `listen`: HOST:PORT of the server. `hosts`: more names; "*": all.
  HostRule(absl::string_view listen, std::vector<std::string> hosts);
  // localhost, an address, the host of `listen`, and `hosts`.
  bool Allows(absl::string_view authority) const;

 private:
  std::vector<std::string> hosts_;
  bool allows_all_ = false;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_HTTP_HTTP_NAMES_H_
