#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/rpc/client_access.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

TEST(TlsMismatch, PlaintextToTlsNamesFlag) {
  ClientAccess access;
  access.prefix = "store-";
  for (const char* error : {"GOAWAY received; Error code: 0", "Transport closed"}) {
    EXPECT_THAT(TlsMismatch(error, access), HasSubstr("if it uses TLS, pass --store-tls-ca"));
  }
  EXPECT_EQ(TlsMismatch("Connection refused", access), "");
  access.tls_ca = "/ca.pem";
  EXPECT_EQ(TlsMismatch("Transport closed", access), "");
}

TEST(TlsMismatch, TlsFailureNamesItsCause) {
  ClientAccess access;
  access.tls_ca = "/ca.pem";
  EXPECT_THAT(TlsMismatch("SSL routines::wrong version number", access),
              HasSubstr("the server does not use TLS; leave out --tls-ca"));
  EXPECT_THAT(TlsMismatch("certificate verify failed", access),
              HasSubstr("not signed by the authority in --tls-ca"));
}

}  // namespace
}  // namespace hearth
