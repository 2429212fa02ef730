// Names and addresses of an HTTP server and of its callers: which Host a request may name, and
// which addresses count as one caller.
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
  // Parses "10.0.0.0/8", "fd00::/8" or "192.0.2.7". kInvalidArgument names valid forms.
  static absl::StatusOr<Cidr> Parse(absl::string_view text);
  // Parses comma-separated blocks; "" gives an empty list.
  static absl::StatusOr<std::vector<Cidr>> ParseList(absl::string_view text);

  // Whether the block contains `address`, an IP address without a port. False if it is no IP
  // address.
  bool Contains(absl::string_view address) const;

 private:
  std::array<uint8_t, 16> bytes_ = {};  // IPv4 addresses are stored as ::ffff:a.b.c.d
  int bits_ = 128;
};

// Returns the caller of an address, for limits per caller: an IPv4 address, or an IPv6 network of
// 64 bits, because one host can use all of its addresses.
std::string CallerOfAddress(absl::string_view address);

// Returns the host of "localhost:8000" or "[::1]:80", without port and brackets, in lower case.
std::string HostOf(absl::string_view authority);

// HostRule: which hosts a request's Host header may name. It protects against DNS rebinding: a page
// of another site, whose name was pointed at this server, sends the name of that site.
class HostRule {
 public:
  // `listen`: HOST:PORT of the server. `hosts`: additional names; "*" allows all names.
  HostRule(absl::string_view listen, std::vector<std::string> hosts);
  // Whether Host may be `authority`: localhost, any IP address, the host of `listen`, or one of
  // `hosts`.
  bool Allows(absl::string_view authority) const;

 private:
  std::vector<std::string> hosts_;
  bool allows_all_ = false;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_HTTP_HTTP_NAMES_H_
