#include "services/rpc/status_conversion.h"

#include <gtest/gtest.h>

#include <string>

#include "proto/error_details.pb.h"

namespace hearth {
namespace {

TEST(StatusConversion, CodeAndMessageRoundTrip) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "why");
    const grpc::Status converted = ToGrpcStatus(status);
    EXPECT_EQ(static_cast<int>(converted.error_code()), code);
    EXPECT_EQ(FromGrpcStatus(converted), status) << status;
  }
}

TEST(StatusConversion, InvalidCodeBecomesUnknown) {
  const grpc::Status odd(static_cast<grpc::StatusCode>(77), "odd");
  EXPECT_EQ(FromGrpcStatus(odd), absl::UnknownError("odd"));
}

TEST(StatusConversion, LongMessageIsShortened) {
  const grpc::Status status = ToGrpcStatus(absl::InternalError(std::string(100000, 'x')));
  EXPECT_EQ(status.error_message().size(), kMaxStatusMessageBytes);
}

TEST(StatusConversion, RefusedFieldIsInDetails) {
  const std::string message = "sampling.top_p: is 3; must be 0 (off) or in (0, 1]";
  google::rpc::Status details;
  ASSERT_TRUE(
      details.ParseFromString(ToGrpcStatus(absl::InvalidArgumentError(message)).error_details()));
  EXPECT_EQ(details.code(), 3);
  EXPECT_EQ(details.message(), message);
  ASSERT_EQ(details.details_size(), 1);
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/google.rpc.BadRequest");
  google::rpc::BadRequest bad;
  ASSERT_TRUE(details.details(0).UnpackTo(&bad));
  ASSERT_EQ(bad.field_violations_size(), 1);
  EXPECT_EQ(bad.field_violations(0).field(), "sampling.top_p");
  EXPECT_EQ(bad.field_violations(0).description(), "is 3; must be 0 (off) or in (0, 1]");
}

TEST(StatusConversion, FieldOfFindsPathsOnly) {
  EXPECT_EQ(FieldOf("token_ids[7] is 9, limit 8"), "token_ids[7]");
  EXPECT_EQ(FieldOf("questions[3].text: empty"), "questions[3].text");
  EXPECT_EQ(FieldOf("prompt: must have text, token_ids or chat; got none"), "prompt");
  EXPECT_EQ(FieldOf("next_position is 3"), "next_position");
  // Names of the client in the path of a schema.
  for (const char* path :
       {"tools[0].function.parameters.$defs.F.items", "response_format.json_schema.schema.anyOf[3]",
        "guided_json.properties.first-name", "guided_json.properties[\"a \\\" b: c\"].type"}) {
    EXPECT_EQ(FieldOf(std::string(path) + ": must be a list"), path);
  }
  for (const char* none : {"guided_json[\"a: must", "guided_json[\"a\\", "a[\"b\"", "$defs: no",
                           "it is empty", "publish: empty message", "the manifest: no",
                           "kv-bytes: too few", "Prompt: no", "3: no", "", ": no", "prompt"}) {
    EXPECT_EQ(FieldOf(none), "") << none;
  }
}

TEST(StatusConversion, ErrorsWithoutFieldHaveNoDetails) {
  EXPECT_EQ(ToGrpcStatus(absl::NotFoundError("prompt: gone")).error_details(), "");
  EXPECT_EQ(ToGrpcStatus(absl::InvalidArgumentError("no")).error_details(), "");
  const std::string longest = "stop[0]: " + std::string(1015, 'x');
  EXPECT_NE(ToGrpcStatus(absl::InvalidArgumentError(longest)).error_details(), "");
  EXPECT_EQ(ToGrpcStatus(absl::InvalidArgumentError(longest + "x")).error_details(), "");
}

}  // namespace
}  // namespace hearth
