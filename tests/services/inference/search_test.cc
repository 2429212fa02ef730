// Generate with beam search over gRPC: all tokens come in one message, with the score; invalid
// parameters are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/services/inference/worker_server.h"
#include "tests/support/memory_prefix_cache.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

v1::GenerateRequest Searching(uint32_t beams, uint32_t max_new_tokens) {
  v1::GenerateRequest request = TextRequest("the keeper", max_new_tokens);
  request.set_beams(beams);
  return request;
}

int TokenMessages(const Generation& generation) {
  int messages = 0;
  for (const auto& message : generation.messages) messages += message.has_token() ? 1 : 0;
  return messages;
}

TEST(Search, BeamAnswerComesOnceWithScore) {
  WorkerServer server(WorkerServer::Invariant());
  const Generation found = server.Generate(Searching(4, 12));
  ASSERT_TRUE(found.status.ok()) << found.status.error_message();
  EXPECT_EQ(TokenMessages(found), 1);
  EXPECT_EQ(found.ids.size(), 12u);
  EXPECT_FALSE(found.text.empty());
  EXPECT_EQ(found.finished.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(found.finished.generated_tokens(), 12u);
  ASSERT_EQ(found.finished.samples_size(), 1);
  EXPECT_LT(found.finished.samples(0).beam_score(), 0.0);
  const Generation greedy = server.Generate(TextRequest("the keeper", 12));
  EXPECT_EQ(greedy.finished.samples(0).beam_score(), 0.0);
  EXPECT_EQ(found.finished.first_logits_sha256(), greedy.finished.first_logits_sha256());
  v1::GenerateRequest squared = Searching(4, 12);
  squared.set_length_penalty(0);
  EXPECT_NEAR(server.Generate(squared).finished.samples(0).beam_score(),
              12 * found.finished.samples(0).beam_score(), 1e-4)
      << "all answers have 12 tokens";
}

TEST(Search, StopStringEndsBeam) {
  WorkerServer server(WorkerServer::Invariant());
  const std::string text = server.Generate(Searching(4, 12)).text;
  int stopped = 0;
  for (size_t at = 1; at < text.size(); ++at) {
    const auto is_plain = [](char c) { return c > ' ' && c < '\x7f'; };
    if (!is_plain(text[at])) continue;
    v1::GenerateRequest request = Searching(4, 12);
    request.add_stop(text.substr(at, 1));
    request.set_early_stopping(true);
    request.set_length_penalty(-1);
    const Generation found = server.Generate(request);
    ASSERT_TRUE(found.status.ok()) << found.status.error_message();
    EXPECT_THAT(found.text, testing::Not(HasSubstr(request.stop(0))));
    stopped += found.finished.reason() == v1::FINISH_REASON_STOP ? 1 : 0;
  }
  EXPECT_GT(stopped, 0);
}

TEST(Search, CachedPrefixGivesSameBeams) {
  WorkerServer server(WorkerServer::Invariant());
  MemoryPrefixCache cache(server.engine()->layout());
  server.SetCache(&cache);
  v1::GenerateRequest request = IdsRequest(CountingTokens(70), 20);
  request.set_beams(5);
  request.set_wait_published(true);
  const Generation cold = server.Generate(request), warm = server.Generate(request);
  EXPECT_EQ(cold.started.cached_tokens(), 0u);
  EXPECT_EQ(cold.published.published_tokens(), 64u) << "of the prompt";
  EXPECT_GE(warm.started.cached_tokens(), 64u);
  EXPECT_EQ(warm.ids, cold.ids);
  EXPECT_EQ(warm.finished.samples(0).beam_score(), cold.finished.samples(0).beam_score());
}

TEST(Search, InvalidSearchNamesItsField) {
  WorkerServer server(WorkerServer::Invariant());
  using Change = std::function<void(v1::GenerateRequest*)>;
  const std::vector<std::pair<std::string, Change>> wrong = {
      {"beams: must be in [1, 16]; got 17", [](auto* r) { r->set_beams(17); }},
      {"hash_logits", [](auto* r) { r->set_hash_logits(true); }},
      {"first_draw 1", [](auto* r) { r->set_first_draw(1); }},
      {"length_penalty: is 5", [](auto* r) { r->set_length_penalty(5); }},
      {"length_penalty: needs beams above 1; got beams 1",
       [](auto* r) { r->set_beams(1), r->set_length_penalty(1); }},
      {"early_stopping: needs beams above 1",
       [](auto* r) { r->clear_beams(), r->set_early_stopping(true); }}};
  for (const auto& [why, change] : wrong) {
    v1::GenerateRequest request = Searching(2, 4);
    change(&request);
    const grpc::Status status = server.Generate(request).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << why;
    EXPECT_THAT(status.error_message(), HasSubstr(why));
  }
  WorkerServer exact({});
  EXPECT_THAT(exact.Generate(Searching(2, 4)).status.error_message(),
              HasSubstr("beams: beam search needs exactness invariant"));
}

}  // namespace
}  // namespace hearth
