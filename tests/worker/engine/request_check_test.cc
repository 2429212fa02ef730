#include "worker/engine/request/request_check.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ModelConfig SmallConfig() {
  ModelConfig config;
  config.vocab_size = 100;
  config.max_position_embeddings = 64;
  return config;
}

EngineRequest Good() {
  EngineRequest request;
  request.token_ids.assign(60, 5);
  request.max_new_tokens = 4;
  return request;
}

void ExpectRefused(const EngineRequest& request, const std::string& field,
                   const std::string& limit) {
  const absl::Status status = CheckRequest(request, SmallConfig());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(field), HasSubstr(limit)));
}

TEST(RequestCheckTest, RequestFillingContextIsAccepted) {
  EXPECT_TRUE(CheckRequest(Good(), SmallConfig()).ok());
}

TEST(RequestCheckTest, InvalidRequestNamesFieldAndLimit) {
  EngineRequest request = Good();
  request.token_ids.clear();
  ExpectRefused(request, "token_ids", "empty");

  request = Good();
  request.token_ids.assign(65, 5);
  ExpectRefused(request, "token_ids", "64");

  request = Good();
  request.samples = 0;
  ExpectRefused(request, "n: ", "16]; got 0");
  request.samples = 17;
  ExpectRefused(request, "n: ", "16]; got 17");
  request.samples = 2;
  request.max_new_tokens = 0;
  ExpectRefused(request, "n: ", "max_new_tokens");

  request = Good();
  request.max_new_tokens = 5;
  ExpectRefused(request, "max_new_tokens", "64");
  request.max_new_tokens = 0xFFFFFFFFu;
  ExpectRefused(request, "max_new_tokens", "64");

  request = Good();
  request.token_ids[7] = 100;
  ExpectRefused(request, "token_ids[7]", "100");
  request.token_ids[7] = -1;
  ExpectRefused(request, "token_ids[7]", "-1");

  request = Good();
  request.breakpoints = {10, 10};
  ExpectRefused(request, "breakpoints", "10");
  request.breakpoints = {61};
  ExpectRefused(request, "breakpoints", "60");

  request = Good();
  request.tenant.clear();
  ExpectRefused(request, "tenant", "256");

  request = Good();
  request.sampling.temperature = -1;
  ExpectRefused(request, "temperature", "0");
}

}  // namespace
}  // namespace hearth
