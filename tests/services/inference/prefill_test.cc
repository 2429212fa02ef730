// Prefill: its answer when the prompt is computed, and progress messages before.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/store/small_layout.h"

namespace hearth {
namespace {

TEST(Prefill, SecondPrefillComputesNothing) {
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

v1::PrefillRequest RequestOf(uint32_t tokens, const std::vector<uint32_t>& breakpoints) {
  v1::PrefillRequest request;
  for (uint32_t id : CountingTokens(tokens)) {
    request.mutable_prompt()->mutable_token_ids()->add_ids(id);
  }
  for (const uint32_t at : breakpoints) request.mutable_prompt()->add_breakpoints(at);
  return request;
}

// The end of the prompt is restored. The new breakpoints lie before the sliding window of the end,
// so they must be computed.
TEST(Prefill, AddedBreakpointIsComputed) {
  CachedWorker worker;
  v1::PrefillResponse first, more, again;
  ASSERT_TRUE(Prefill(worker.server.stub(), RequestOf(200, {200}), &first).ok());
  ASSERT_EQ(first.computed_tokens(), 200u);
  const v1::PrefillRequest asked = RequestOf(200, {32, 64, 200});
  ASSERT_TRUE(Prefill(worker.server.stub(), asked, &more).ok());
  EXPECT_EQ(more.cached_tokens(), 200u);
  EXPECT_EQ(more.computed_tokens(), 64u) << "32, and 32 more";
  EXPECT_EQ(more.published().published_tokens(), 200u);
  EXPECT_EQ(more.published().note(), "");
  ASSERT_TRUE(Prefill(worker.server.stub(), asked, &again).ok());
  EXPECT_EQ(again.computed_tokens(), 0u) << "they are stored";
  EXPECT_EQ(again.published().note(), "");
}

TEST(Prefill, NoteListsUnpublishedBoundaries) {
  CachedWorker worker;
  v1::PrefillResponse answer;
  ASSERT_TRUE(Prefill(worker.server.stub(), RequestOf(200, {200}), &answer).ok());
  worker.cache->before_publish = [&] { worker.server.engine()->Drain(absl::Now()); };
  const grpc::Status more = Prefill(worker.server.stub(), RequestOf(200, {32, 64, 200}), &answer);
  ASSERT_TRUE(more.ok()) << more.error_message();
  EXPECT_EQ(answer.published().published_tokens(), 200u);
  EXPECT_EQ(answer.published().note(),
            "2 boundaries not kept, starting at token 32: the worker is shutting down");
}

TEST(Prefill, ProgressNeverDecreases) {
  WorkerServer::Options options;
  options.progress_pause = absl::ZeroDuration();
  CachedWorker worker(options);
  v1::PrefillResponse end;
  ASSERT_TRUE(Prefill(worker.server.stub(), RequestOf(200, {200}), &end).ok());
  v1::PrefillRequest request = RequestOf(240, {32, 64, 240});
  request.set_report_progress(true);
  std::vector<v1::PrefillResponse> progress;
  ASSERT_TRUE(Prefill(worker.server.stub(), request, &end, &progress).ok());
  ASSERT_GE(progress.size(), 4u) << "of three requests";
  for (size_t i = 1; i < progress.size(); ++i) {
    EXPECT_GE(progress[i].progress().ready_tokens(), progress[i - 1].progress().ready_tokens());
  }
}

TEST(Generate, RestoredPromptCannotAddBreakpoint) {
  CachedWorker worker;
  v1::PrefillResponse warm;
  ASSERT_TRUE(Prefill(worker.server.stub(), RequestOf(200, {200}), &warm).ok());
  v1::GenerateRequest request = IdsRequest(CountingTokens(210));
  request.set_wait_published(true);
  request.mutable_prompt()->add_breakpoints(32);
  request.mutable_prompt()->add_breakpoints(200);
  const Generation answer = worker.server.Generate(request);
  ASSERT_TRUE(answer.status.ok());
  EXPECT_EQ(answer.started.cached_tokens(), 200u);
  const std::string& note = answer.published.note();
  EXPECT_TRUE(absl::StrContains(note, "boundary 32 was not stored: compute it with Prefill"))
      << note;
  EXPECT_FALSE(absl::StrContains(note, "boundary 200")) << note;
}

// The engine (SmallEngine) computes 16 tokens in each step.
TEST(Progress, ReportedOnlyWhenRequested) {
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

TEST(Progress, PauseLimitsProgressMessages) {
  WorkerServer::Options options;
  options.progress_pause = absl::Hours(1);
  WorkerServer server(options);
  v1::GenerateRequest request = IdsRequest(CountingTokens(100));
  request.set_report_progress(true);
  int said = 0;
  for (const auto& message : server.Generate(request).messages) said += message.has_progress();
  EXPECT_EQ(said, 1);
}

TEST(Progress, PrefillReportsProgressToo) {
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

TEST(Prefill, ComputedTokensAreCounted) {
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
