#include "services/rpc/status_conversion.h"

#include <gtest/gtest.h>

#include <string>

namespace hearth {
namespace {

TEST(StatusConversion, KeepsEveryCodeAndMessageBothWays) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "why");
    const grpc::Status converted = ToGrpcStatus(status);
    EXPECT_EQ(static_cast<int>(converted.error_code()), code);
    EXPECT_EQ(FromGrpcStatus(converted), status) << status;
  }
}

TEST(StatusConversion, ReadsACodeBeyondTheKnownOnesAsUnknown) {
  const grpc::Status odd(static_cast<grpc::StatusCode>(77), "odd");
  EXPECT_EQ(FromGrpcStatus(odd), absl::UnknownError("odd"));
}

TEST(StatusConversion, CutsMessagesThatWouldNotFitTheTrailers) {
  const grpc::Status status = ToGrpcStatus(absl::InternalError(std::string(100000, 'x')));
  EXPECT_EQ(status.error_message().size(), kMaxStatusMessageBytes);
}

}  // namespace
}  // namespace hearth
