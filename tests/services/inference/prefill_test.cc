// Prompts that are computed: what Prefill says at its end, and what callers hear meanwhile.
#include <gtest/gtest.h>

#include <vector>

#include "tests/services/inference/worker_server.h"
#include "tests/services/store/small_layout.h"

namespace hearth {
namespace {

TEST(Prefill, PublishesAndComputesNothingTheSecondTime) {
  CachedWorker worker;
  v1::PrefillRequest request;
  for (uint32_t id : CountingTokens(40)) request.mutable_prompt()->mutable_token_ids()->add_ids(id);
  request.mutable_prompt()->add_breakpoints(40);
  v1::PrefillResponse first, second;
  ASSERT_TRUE(Prefill(worker.server.stub(), request, &first).ok());
  EXPECT_EQ(first.prompt_tokens(), 40u);
  EXPECT_EQ(first.computed_tokens(), 40u);
  EXPECT_EQ(first.published().published_tokens(), 40u) << first.published().note();
  EXPECT_EQ(std::vector<uint32_t>(first.boundaries().begin(), first.boundaries().end()),
            (std::vector<uint32_t>{32, 40}));
  ASSERT_TRUE(Prefill(worker.server.stub(), request, &second).ok());
  EXPECT_EQ(second.cached_tokens(), 40u);
  EXPECT_EQ(second.computed_tokens(), 0u);
  EXPECT_EQ(second.published().published_tokens(), 40u);
}

// SmallEngine computes 16 tokens a step.
TEST(Progress, IsSaidOfAPromptWhereAsked) {
  WorkerServer::Options options;
  options.progress_pause = absl::ZeroDuration();
  WorkerServer server(options);
  v1::GenerateRequest request = IdsRequest(CountingTokens(40));
  for (const bool asked : {true, false}) {
    request.set_report_progress(asked);
    std::vector<uint32_t> ready;
    bool has_token = false;
    for (const v1::GenerateResponse& message : server.Generate(request).messages) {
      has_token |= message.has_token();
      if (!message.has_progress()) continue;
      ready.push_back(message.progress().ready_tokens());
      EXPECT_FALSE(has_token) << "it comes before the answer";
    }
    EXPECT_EQ(ready, asked ? (std::vector<uint32_t>{16, 32}) : std::vector<uint32_t>());
  }
}

TEST(Progress, IsSaidNoMoreOftenThanItIsRead) {
  WorkerServer::Options options;
  options.progress_pause = absl::Hours(1);
  WorkerServer server(options);
  v1::GenerateRequest request = IdsRequest(CountingTokens(100));
  request.set_report_progress(true);
  int said = 0;
  for (const auto& message : server.Generate(request).messages) said += message.has_progress();
  EXPECT_EQ(said, 1);
}

TEST(Progress, IsSaidOfAPrefillToo) {
  WorkerServer::Options options;
  options.progress_pause = absl::ZeroDuration();
  v1::PrefillRequest request;
  for (const uint32_t id : CountingTokens(50))
    request.mutable_prompt()->mutable_token_ids()->add_ids(id);
  for (const bool asked : {true, false}) {
    CachedWorker worker(options);
    request.set_report_progress(asked);
    v1::PrefillResponse end;
    std::vector<v1::PrefillResponse> progress;
    ASSERT_TRUE(Prefill(worker.server.stub(), request, &end, &progress).ok());
    EXPECT_EQ(end.computed_tokens(), 48u);
    ASSERT_EQ(progress.size(), asked ? 2u : 0u);
    if (!asked) continue;
    EXPECT_EQ(progress[0].progress().ready_tokens(), 16u);
    EXPECT_EQ(progress[1].progress().ready_tokens(), 32u);
    EXPECT_EQ(progress[1].prompt_tokens(), 50u);
  }
}

TEST(Prefill, CountsWhatWentThroughTheModel) {
  CachedWorker worker;
  v1::PrefillRequest request;
  for (uint32_t id : CountingTokens(40)) request.mutable_prompt()->mutable_token_ids()->add_ids(id);
  v1::PrefillResponse first, second;
  ASSERT_TRUE(Prefill(worker.server.stub(), request, &first).ok());
  EXPECT_EQ(first.computed_tokens(), 32u) << "it ends at the last boundary worth keeping";
  ASSERT_TRUE(Prefill(worker.server.stub(), request, &second).ok());
  EXPECT_EQ(second.cached_tokens(), 32u);
  EXPECT_EQ(second.computed_tokens(), 0u) << "and the rest is computed for no one";
}

}  // namespace
}  // namespace hearth
