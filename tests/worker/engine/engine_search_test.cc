// Beam search: beams are sequences that fork and share blocks. The reference runs the same search
// with a separate one-token request for each step of each beam.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/engine/engine_harness.h"
#include "worker/text/beam_search.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;
using Tokens = std::vector<int32_t>;
using Stops = std::function<bool(absl::Span<const int32_t>)>;

const std::string& SearchDir() { return ModelDir(Geometries()[1].geometry); }

EngineRequest Searching(uint32_t beams, uint32_t prompt = 75, uint32_t answer = 30) {
  EngineRequest request = Request(Prompt(prompt), {}, answer);
  request.search.beams = beams;
  return request;
}

// Reference: runs the search with a separate one-token request for each step of each beam.
BeamSearch::Hypothesis OneByOne(TestWorker* worker, const EngineRequest& request,
                                const Stops& stops = nullptr) {
  BeamSearch::Ends ends;
  ends.stops = stops;
  ends.max_tokens = request.max_new_tokens;
  if (!request.ignore_eos) ends.tokens = (*worker)->config().eos_token_ids;
  BeamSearch search(request.search, ends);
  while (!search.done()) {
    std::vector<std::vector<TokenLogprob>> likeliest;
    for (const auto& beam : search.beams()) {
      EngineRequest next = Request(request.token_ids, {}, 1);
      next.token_ids.insert(next.token_ids.end(), beam.tokens.begin(), beam.tokens.end());
      next.sampling.logprobs = search.candidates();
      std::vector<TokenLogprob>& tokens = likeliest.emplace_back();
      Collector run;
      EngineCallbacks callbacks = run.Callbacks();
      callbacks.on_token = [&](const SampledToken& token) {
        tokens = token.top;
        return true;
      };
      const auto taken = (*worker)->Submit(next, std::move(callbacks));
      EXPECT_TRUE(taken.ok()) << taken.status();
      run.WaitAll();
    }
    search.Advance(likeliest);
  }
  return search.best();
}

TEST(EngineSearchTest, SearchEqualsTokenByTokenSearch) {
  TestWorker worker(SearchDir(), InvariantOptions());
  TestWorker alone(SearchDir(), InvariantOptions());
  int unlike_greedy = 0;
  for (const uint32_t beams : {2u, 5u, 10u}) {
    for (const uint32_t prompt : {5u, 64u, 75u}) {
      SCOPED_TRACE(testing::Message() << beams << " beams, " << prompt << " tokens");
      const EngineRequest request = Searching(beams, prompt);
      const auto run = worker.Run(request);
      ASSERT_TRUE(run->error.ok()) << run->error;
      const BeamSearch::Hypothesis wanted = OneByOne(&alone, request);
      EXPECT_EQ(run->tokens, wanted.tokens);
      ASSERT_EQ(run->finished.samples.size(), 1u);
      EXPECT_EQ(run->finished.samples[0].beam_score, wanted.score);
      EXPECT_EQ(run->finished.reason, FinishReason::kLength);
      EXPECT_EQ(run->finished.generated_tokens, 30u);
      unlike_greedy += run->tokens != worker.Run(Searching(1, prompt))->tokens ? 1 : 0;
    }
  }
  EXPECT_GT(unlike_greedy, 4) << "most searches must differ from greedy decoding";
  EXPECT_EQ(worker->Stats().running, 0u);
}

// Uses tokens of ordinary answers as end tokens, so that beams end at them.
TEST(EngineSearchTest, EndTokensAndStopsFinishBeams) {
  const std::vector<uint32_t> prompts = {20, 33, 75, 90};
  const std::string dir = NewTinyCheckpoint(Geometries()[1].geometry, "search");
  TestWorker endless(dir, InvariantOptions());
  std::string ends;
  for (const uint32_t prompt : prompts) {
    const Tokens tokens = endless.Run(Searching(3, prompt, 20))->tokens;
    absl::StrAppend(&ends, ends.empty() ? "" : ", ", tokens[5]);
  }
  std::ofstream(dir + "/generation_config.json") << "{\"eos_token_id\": [" << ends << "]}";
  TestWorker worker(dir, InvariantOptions()), alone(dir, InvariantOptions());
  const Stops every_eighth = [](absl::Span<const int32_t> tokens) {
    return tokens.back() % 8 == 1;
  };
  std::map<FinishReason, int> reasons;
  for (const uint32_t prompt : prompts) {
    for (const int kind : {0, 1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << prompt << " tokens, kind " << kind);
      const Stops stops = kind < 2 ? nullptr : every_eighth;
      EngineRequest request = Searching(3, prompt, 20);
      request.ignore_eos = kind >= 2;
      request.search.length_penalty = kind == 1 ? -1 : 1;
      request.search.early_stopping = kind % 2 == 0;
      Collector run;
      EngineCallbacks callbacks = run.Callbacks();
      callbacks.stops = stops;
      ASSERT_TRUE(worker->Submit(request, std::move(callbacks)).ok());
      run.WaitAll();
      const BeamSearch::Hypothesis wanted = OneByOne(&alone, request, stops);
      EXPECT_EQ(run.tokens, wanted.tokens);
      EXPECT_EQ(run.finished.reason, wanted.end);
      EXPECT_EQ(run.finished.samples[0].beam_score, wanted.score);
      ++reasons[run.finished.reason];
    }
  }
  EXPECT_GT(reasons[FinishReason::kEos], 0);
  EXPECT_GT(reasons[FinishReason::kStop], 0);
}

TEST(EngineSearchTest, WarmSearchEqualsColdSearch) {
  TestWorker cold(SearchDir(), InvariantOptions(), nullptr, /*with_cache=*/false);
  EngineRequest request = Searching(4, 331, 40);
  const auto wanted = cold.Run(request);
  TestWorker worker(SearchDir(), InvariantOptions());
  const auto first = worker.Run(request), warm = worker.Run(request);
  EXPECT_EQ(first->tokens, wanted->tokens);
  EXPECT_EQ(warm->tokens, wanted->tokens);
  EXPECT_GT(warm->started.cached_tokens, 300u);
  EXPECT_EQ(warm->finished.samples[0].beam_score, wanted->finished.samples[0].beam_score);
  EXPECT_EQ(warm->finished.first_logits_sha256, wanted->finished.first_logits_sha256);
  EXPECT_EQ(first->outcome.published_tokens, 320u)
      << "only the prompt is published, not the answer";
  Collector beside, other, searched;
  worker.Submit(Request(Prompt(200, 9), {}, 60), &beside);
  worker.Submit(request, &searched);
  worker.Submit(Searching(3, 100, 20), &other);
  searched.WaitAll();
  EXPECT_EQ(searched.tokens, wanted->tokens);
  request.requested_kv.cache = "offloaded";
  EXPECT_EQ(worker.Run(request)->tokens, wanted->tokens);
}

// Beams that continue the same complete chunk share its quantized block.
TEST(EngineSearchTest, BeamsShareQuantizedBlocks) {
  EngineOptions options = InvariantOptions();
  options.kv.cache = "quantized";
  options.kv.quantization = "bits=8,group=16";
  TestWorker worker(SearchDir(), options);
  TestWorker alone(SearchDir(), options);
  const EngineRequest request = Searching(4, 75, 40);
  const auto run = worker.Run(request);
  EXPECT_EQ(run->tokens, OneByOne(&alone, request).tokens);
}

TEST(EngineSearchTest, CallerMayEndSearchAnswer) {
  TestWorker worker(SearchDir(), InvariantOptions());
  const Tokens all = worker.Run(Searching(3))->tokens;
  Collector cut;
  cut.on_token = [](size_t number) { return number < 4; };
  worker.Submit(Searching(3), &cut);
  cut.WaitAll();
  EXPECT_EQ(cut.tokens, Tokens(all.begin(), all.begin() + 5));
  EXPECT_EQ(cut.finished.reason, FinishReason::kStop);
}

TEST(EngineSearchTest, SearchForOneTokenIsGreedy) {
  TestWorker worker(SearchDir(), InvariantOptions());
  EXPECT_EQ(worker.Run(Searching(8, 75, 1))->tokens, worker.Run(Searching(1, 75, 1))->tokens);
  EngineRequest one = Searching(1);
  const auto run = worker.Run(one);
  EXPECT_EQ(run->finished.samples[0].beam_score, 0);
}

TEST(EngineSearchTest, CancelEndsAllBeamsOnce) {
  TestWorker worker(SearchDir(), InvariantOptions());
  Collector run;
  EngineCallbacks callbacks = run.Callbacks();
  std::shared_ptr<EngineRequestHandle> handle;
  absl::Notification submitted;
  callbacks.stops = [&](absl::Span<const int32_t> tokens) {
    submitted.WaitForNotification();
    if (tokens.size() == 9) handle->Cancel();
    return false;
  };
  auto taken = worker->Submit(Searching(6, 75, 400), std::move(callbacks));
  ASSERT_TRUE(taken.ok());
  handle = *taken;
  submitted.Notify();
  run.WaitEnd();
  EXPECT_EQ(run.error.code(), absl::StatusCode::kCancelled);
  worker->Drain(absl::InfiniteFuture());
  EXPECT_EQ(worker.Counter("requests_cancelled"), 1u);
  EXPECT_EQ(worker->Stats().running, 0u);
  EXPECT_TRUE(run.tokens.empty());
}

// The call that owns the callbacks may also own the handle, so the handle must not own the
// callbacks.
TEST(EngineSearchTest, HandleDoesNotOwnCallbacks) {
  for (const bool cancels : {false, true}) {
    TestWorker worker(SearchDir(), InvariantOptions());
    const auto held = std::make_shared<bool>(cancels);
    Collector run;
    EngineCallbacks callbacks = run.Callbacks();
    std::shared_ptr<EngineRequestHandle> handle;
    absl::Notification submitted;
    callbacks.stops = [&handle, &submitted, held](absl::Span<const int32_t> tokens) {
      submitted.WaitForNotification();
      if (*held && tokens.size() == 3) handle->Cancel();
      return false;
    };
    auto taken = worker->Submit(Searching(3, 75, 400), std::move(callbacks));
    callbacks.stops = nullptr;
    ASSERT_TRUE(taken.ok());
    handle = *taken;
    submitted.Notify();
    run.WaitAll();
    EXPECT_EQ(run.error.ok(), !cancels);
    worker.Stop();
    EXPECT_EQ(held.use_count(), 1);
  }
}

TEST(EngineSearchTest, DeadlineAndDrainEndSearch) {
  TestWorker worker(SearchDir(), InvariantOptions());
  Collector late;
  EngineCallbacks callbacks = late.Callbacks();
  EngineRequest request = Searching(6, 75, 400);
  request.deadline = absl::Now() + absl::Milliseconds(50);
  callbacks.stops = [&](absl::Span<const int32_t> tokens) {
    while (tokens.size() == 3 && absl::Now() < request.deadline) {
    }
    return false;
  };
  ASSERT_TRUE(worker->Submit(request, std::move(callbacks)).ok());
  late.WaitEnd();
  EXPECT_EQ(late.error.code(), absl::StatusCode::kDeadlineExceeded);
  Collector drained;
  EngineCallbacks until = drained.Callbacks();
  absl::Notification runs, ends;
  until.stops = [&](absl::Span<const int32_t> tokens) {
    if (tokens.size() == 3 && !runs.HasBeenNotified()) {
      runs.Notify();
      ends.WaitForNotification();
    }
    return false;
  };
  ASSERT_TRUE(worker->Submit(Searching(6, 75, 400), std::move(until)).ok());
  runs.WaitForNotification();
  worker->Drain(absl::Now());
  ends.Notify();
  drained.WaitEnd();
  EXPECT_EQ(drained.error.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(worker->Stats().running, 0u);
}

TEST(EngineSearchTest, InvalidSearchNamesTheField) {
  EngineOptions options = InvariantOptions();
  options.max_running = 6;
  TestWorker worker(SearchDir(), options);
  TestWorker exact(SearchDir(), TestWorker::SmallOptions());
  const std::vector<std::pair<std::string, std::function<void(EngineRequest*)>>> wrong = {
      {"beams: must be in [1, 16]; got 0", [](auto* r) { r->search.beams = 0; }},
      {"beams: must be in [1, 16]; got 17", [](auto* r) { r->search.beams = 17; }},
      {"beams: must be at most 6, the worker's --max-running; got 7",
       [](auto* r) { r->search.beams = 7; }},
      {"length_penalty: is 4.5; must be in [-4, 4]",
       [](auto* r) { r->search.length_penalty = 4.5; }},
      {"length_penalty: is nan", [](auto* r) { r->search.length_penalty = std::nanf(""); }},
      {"beams: 3 cannot be combined with n 2", [](auto* r) { r->samples = 2; }},
      {"with sampling.temperature 0.5", [](auto* r) { r->sampling.temperature = 0.5; }},
      {"with logprobs", [](auto* r) { r->sampling.logprobs = 2; }},
      {"with logprobs", [](auto* r) { r->sampling.report_logprobs = true; }},
      {"with hash_logits", [](auto* r) { r->hash_logits = true; }},
      {"with first_draw 3", [](auto* r) { r->first_draw = 3; }},
      {"with max_new_tokens 0", [](auto* r) { r->max_new_tokens = 0; }},
      {"beams: not supported with kv_cache static",
       [](auto* r) { r->requested_kv.cache = "static"; }},
      {"beams: not supported with kv_cache static",
       [](auto* r) { r->requested_kv.cache = "offloaded_static"; }},
  };
  for (const auto& [why, change] : wrong) {
    EngineRequest request = Searching(3);
    change(&request);
    const absl::Status refused = worker->Submit(request, {}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(why));
  }
  const absl::Status refused = exact->Submit(Searching(3), {}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("beams: beam search needs exactness invariant; this worker uses exact"));
}

// Beams share the whole chunks of the prompt. Each beam needs memory for all tokens after them.
TEST(EngineSearchTest, SearchStaysWithinItsMemory) {
  TestWorker any(SearchDir(), InvariantOptions(), nullptr, /*with_cache=*/false);
  const auto wanted = any.Run(Searching(4, 331, 120));
  EngineOptions options = InvariantOptions();
  options.memory.pool_bytes = 0;
  // Blocks for 451 tokens; for each other beam, blocks for its tokens after token 320; five local
  // chunks per beam.
  options.memory.kv_bytes = (29 + 3 * 9) * any->layout().ObjectBytes(16, LayerGroup::kGlobal) +
                            4 * 5 * any->layout().ObjectBytes(16, LayerGroup::kLocal);
  TestWorker worker(SearchDir(), options, nullptr, /*with_cache=*/false);
  Collector run, next;
  EngineCallbacks callbacks = run.Callbacks();
  uint64_t most = 0;
  callbacks.stops = [&](absl::Span<const int32_t>) {
    most = std::max(most, worker->Stats().kv_used_bytes);
    return false;
  };
  ASSERT_TRUE(worker->Submit(Searching(4, 331, 120), std::move(callbacks)).ok());
  worker.Submit(Searching(4, 331, 120), &next);
  run.WaitAll();
  next.WaitAll();
  ASSERT_TRUE(run.error.ok() && next.error.ok()) << run.error << next.error;
  EXPECT_EQ(run.tokens, wanted->tokens);
  EXPECT_EQ(next.tokens, wanted->tokens);
  EXPECT_LE(most, options.memory.kv_bytes);
  EXPECT_EQ(worker->Stats().kv_used_bytes, 0u);
  options.memory.kv_bytes -= 1;
  TestWorker small(SearchDir(), options, nullptr, /*with_cache=*/false);
  Collector refused;
  small.Submit(Searching(4, 331, 120), &refused);
  refused.WaitEnd();
  EXPECT_EQ(refused.error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.error.message()), HasSubstr("4 beams of 451 tokens may need"));
}

}  // namespace
}  // namespace hearth
