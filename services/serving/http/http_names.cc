#include "services/serving/http/http_names.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace hearth {
namespace {

using AddressBytes = std::array<uint8_t, 16>;
constexpr AddressBytes kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0};
constexpr int kMappedBits = 96, kNetworkBytes = 8;

bool IsMapped(const AddressBytes& bytes) {
  return std::equal(bytes.begin(), bytes.begin() + kMappedBits / 8, kMapped.begin());
}

std::optional<AddressBytes> ParseAddress(absl::string_view text, bool* is_v4) {
  const std::string address(
      text.substr(0, text.find('%')));  // the part before the IPv6 interface name
  AddressBytes bytes = kMapped;
  *is_v4 = inet_pton(AF_INET, address.c_str(), bytes.data() + kMappedBits / 8) == 1;
  if (*is_v4 || inet_pton(AF_INET6, address.c_str(), bytes.data()) == 1) return bytes;
  return std::nullopt;
}

// Whether `host` is an IP address. DNS rebinding cannot redirect an IP address.
bool IsAddress(const std::string& host) {
  return (!host.empty() && host.find_first_not_of("0123456789.") == std::string::npos) ||
         host.find(':') != std::string::npos;
}

}  // namespace

absl::StatusOr<Cidr> Cidr::Parse(absl::string_view text) {
  const absl::Status wrong = absl::InvalidArgumentError(
      absl::StrCat("must be a block of addresses such as 10.0.0.0/8, fd00::/8 or 192.0.2.7; got \"",
                   text, "\""));
  const size_t slash = text.find('/');
  bool is_v4 = false;
  const auto bytes = ParseAddress(text.substr(0, slash), &is_v4);
  if (!bytes.has_value()) return wrong;
  const int most = is_v4 ? 32 : 128;
  int bits = most;
  if (slash != text.npos && (!absl::SimpleAtoi(text.substr(slash + 1), &bits) || bits < 0)) {
    return wrong;
  }
  if (bits > most) return wrong;
  Cidr cidr;
  cidr.bytes_ = *bytes;
  cidr.bits_ = is_v4 ? bits + kMappedBits : bits;
  return cidr;
}

absl::StatusOr<std::vector<Cidr>> Cidr::ParseList(absl::string_view text) {
  std::vector<Cidr> list;
  for (const absl::string_view one : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    absl::StatusOr<Cidr> cidr = Parse(absl::StripAsciiWhitespace(one));
    if (!cidr.ok()) return cidr.status();
    list.push_back(*cidr);
  }
  return list;
}

bool Cidr::Contains(absl::string_view address) const {
  bool is_v4 = false;
  const auto bytes = ParseAddress(address, &is_v4);
  if (!bytes.has_value()) return false;
  for (int bit = 0; bit < bits_; ++bit) {
    const int mask = 0x80 >> (bit % 8);
    if ((((*bytes)[bit / 8] ^ bytes_[bit / 8]) & mask) != 0) return false;
  }
  return true;
}

std::string CallerOfAddress(absl::string_view address) {
  bool is_v4 = false;
  const auto bytes = ParseAddress(address, &is_v4);
  if (!bytes.has_value()) return std::string(address);
  const absl::string_view all(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  return absl::BytesToHexString(IsMapped(*bytes) ? all : all.substr(0, kNetworkBytes));
}

std::string HostOf(absl::string_view authority) {
  if (absl::ConsumePrefix(&authority, "[")) {
    return absl::AsciiStrToLower(authority.substr(0, authority.find(']')));
  }
  authority = authority.substr(0, authority.find(':'));
  absl::ConsumeSuffix(&authority, ".");
  return absl::AsciiStrToLower(authority);
}

HostRule::HostRule(absl::string_view listen, std::vector<std::string> hosts)
    : hosts_(std::move(hosts)) {
  for (std::string& host : hosts_) absl::StripAsciiWhitespace(&host);
  allows_all_ = std::find(hosts_.begin(), hosts_.end(), "*") != hosts_.end();
  for (std::string& host : hosts_) {
    absl::AsciiStrToLower(&host);
    if (absl::EndsWith(host, ".")) host.pop_back();
  }
  hosts_.push_back("localhost");
  const std::string own = HostOf(listen);
  if (!own.empty()) hosts_.push_back(own);
}

bool HostRule::Allows(absl::string_view authority) const {
  const std::string host = HostOf(authority);
  return allows_all_ || IsAddress(host) ||
         std::find(hosts_.begin(), hosts_.end(), host) != hosts_.end();
}

}  // namespace hearth
