// HostRule and Cidr: host names and addresses that a server accepts.
#include "services/serving/http/http_names.h"

#include <gtest/gtest.h>

namespace hearth {
namespace {

TEST(HostRule, AllowsOnlyServerNames) {
  const HostRule rule("Models.example.com:8000", {"other.example.com", "third.example.com."});
  for (const char* own : {"localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "[::1]",
                          "models.example.com", "other.example.com:80", "other.example.com.:80",
                          "third.example.com", "third.example.com."}) {
    EXPECT_TRUE(rule.Allows(own)) << own;
  }
  for (const char* other : {"", ":8000", "example.com", "localhost.example.com", "127.0.0.1.com"}) {
    EXPECT_FALSE(rule.Allows(other)) << other;
  }
}

TEST(HostRule, EmptyHostIsNotAllowed) {
  EXPECT_FALSE(HostRule(":8000", {}).Allows(""));
  EXPECT_FALSE(HostRule(":8000", {}).Allows(":8000"));
  EXPECT_TRUE(HostRule(":8000", {"*"}).Allows("any.example.com"));
}

TEST(Cidr, ContainsAddressesOfBothFamilies) {
  const auto list = Cidr::ParseList("10.1.0.0/16, fd00::/8,192.0.2.7");
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->size(), 3u);
  EXPECT_TRUE((*list)[0].Contains("10.1.255.3"));
  EXPECT_TRUE((*list)[0].Contains("::ffff:10.1.0.9"));
  EXPECT_FALSE((*list)[0].Contains("10.2.0.1"));
  EXPECT_TRUE((*list)[1].Contains("fd12::1%eth0"));
  EXPECT_FALSE((*list)[1].Contains("fe80::1"));
  EXPECT_TRUE((*list)[2].Contains("192.0.2.7"));
  EXPECT_FALSE((*list)[2].Contains("192.0.2.8"));
}

TEST(Cidr, ParseErrorQuotesInvalidBlock) {
  for (const char* wrong : {"10.0.0.0/33", "proxy", "10.0.0.0/-1", "10.0.0.0/x", "::1/129", "/8"}) {
    const auto parsed = Cidr::Parse(wrong);
    ASSERT_FALSE(parsed.ok()) << wrong;
    EXPECT_NE(parsed.status().message().find(wrong), std::string::npos) << parsed.status();
  }
}

TEST(HostRule, SpacesAroundListedHostsAreIgnored) {
  const HostRule rule("127.0.0.1:80", {"a.example", " B.example "});
  EXPECT_TRUE(rule.Allows("a.example:80"));
  EXPECT_TRUE(rule.Allows("b.example"));
  EXPECT_FALSE(rule.Allows("c.example"));
  EXPECT_TRUE(HostRule("127.0.0.1:80", {" *"}).Allows("c.example"));
}

TEST(CallerOfAddress, IpV6NetworkIsOneCaller) {
  EXPECT_EQ(CallerOfAddress("2001:db8:1:2::1"), CallerOfAddress("2001:db8:1:2:ffff::9"));
  EXPECT_NE(CallerOfAddress("2001:db8:1:2::1"), CallerOfAddress("2001:db8:1:3::1"));
  EXPECT_NE(CallerOfAddress("192.0.2.1"), CallerOfAddress("192.0.2.2"));
  EXPECT_EQ(CallerOfAddress("192.0.2.1"), CallerOfAddress("::ffff:192.0.2.1"));
}

}  // namespace
}  // namespace hearth
