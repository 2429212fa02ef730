// Requests that are preempted because memory is short have the same tokens, log probabilities and
// logits as with enough memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "tests/support/test_folder.h"
#include "tests/support/tiny_adapter.h"
#include "tests/worker/engine/engine_harness.h"
#include "worker/engine/prefix_keeper.h"
#include "worker/engine/runner/kv_snapshot.h"
#include "worker/engine/sequence.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

// Everything that a caller receives, except times.
struct Reported {
  std::map<uint32_t, std::string> answers;  // tokens with log probabilities, by sample
  std::string prompt, ends;
  uint32_t started = 0, prompt_tokens = 0;
};

void AddToken(const SampledToken& token, std::string* text) {
  absl::StrAppend(text, token.id, "@", token.logprob);
  for (const TokenLogprob& other : token.top)
    absl::StrAppend(text, "/", other.id, "@", other.logprob);
  absl::StrAppend(text, " ");
}

struct Followed {
  Collector collector;
  Reported reported;
  uint32_t stop_after = 0;                     // tokens per sample; 0: unlimited
  const absl::Notification* begins = nullptr;  // on_started waits for this notification

  void Submit(TestWorker* worker, EngineRequest request) {
    ASSERT_TRUE((*worker)->Complete(&request).ok());
    EngineCallbacks callbacks = collector.Callbacks(request.writes());
    callbacks.on_started = [this](const StartedInfo& info) {
      if (begins != nullptr) begins->WaitForNotification();
      ++reported.started;
      reported.prompt_tokens = info.prompt_tokens;
    };
    callbacks.on_token = [this](const SampledToken& token) {
      AddToken(token, &reported.answers[token.sample]);
      return ++generated_[token.sample] != stop_after;
    };
    callbacks.on_prompt = [this](absl::Span<const SampledToken> tokens) {
      for (const SampledToken& token : tokens) AddToken(token, &reported.prompt);
    };
    const auto finished = callbacks.on_finished;
    callbacks.on_finished = [this, finished](const FinishedInfo& info) {
      for (const SampleEnd& end : info.samples) {
        absl::StrAppend(&reported.ends, static_cast<int>(end.reason), " ", end.generated_tokens,
                        " ", DigestHex(end.logits_sha256), " ", end.beam_score, "\n");
      }
      absl::StrAppend(&reported.ends, DigestHex(info.first_logits_sha256));
      finished(info);
    };
    const auto handle = (*worker)->Submit(std::move(request), std::move(callbacks));
    ASSERT_TRUE(handle.ok()) << handle.status();
  }

 private:
  std::map<uint32_t, uint32_t> generated_;  // number of tokens, by sample
};

struct Asked {
  EngineRequest request;
  uint32_t stop_after = 0;
};

// Submits all requests together: the first request waits until all are submitted, so that the steps
// do not depend on timing.
std::vector<std::unique_ptr<Followed>> RunAll(TestWorker* worker, const std::vector<Asked>& asked) {
  std::vector<std::unique_ptr<Followed>> runs;
  absl::Notification all_asked;
  for (const Asked& one : asked) {
    runs.push_back(std::make_unique<Followed>());
    runs.back()->stop_after = one.stop_after;
    runs.back()->begins = &all_asked;
    runs.back()->Submit(worker, one.request);
  }
  all_asked.Notify();
  for (const auto& run : runs) run->collector.WaitAll();
  return runs;
}

void ExpectSame(const std::vector<std::unique_ptr<Followed>>& got,
                const std::vector<std::unique_ptr<Followed>>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_TRUE(got[i]->collector.error.ok()) << got[i]->collector.error;
    EXPECT_EQ(got[i]->reported.answers, want[i]->reported.answers);
    EXPECT_EQ(got[i]->reported.prompt, want[i]->reported.prompt);
    EXPECT_EQ(got[i]->reported.ends, want[i]->reported.ends);
    EXPECT_EQ(got[i]->reported.started, 1u);
    EXPECT_EQ(got[i]->reported.prompt_tokens, want[i]->reported.prompt_tokens);
  }
}

Asked Greedy(size_t prompt, uint64_t seed, uint32_t answer) {
  Asked asked{Request(Prompt(prompt, seed), {}, answer)};
  asked.request.hash_logits = true;
  return asked;
}

Asked Drawn(size_t prompt, uint64_t seed, uint32_t answer) {
  Asked asked = Greedy(prompt, seed, answer);
  SamplingParams& sampling = asked.request.sampling;
  sampling.temperature = 2;
  sampling.top_p = 0.9F;
  sampling.seed = seed;
  sampling.logprobs = 3;
  return asked;
}

// Returns one request of each kind, with settings that a preemption must preserve.
std::vector<Asked> OneOfEachKind() {
  std::vector<Asked> asked = {Greedy(60, 1, 90), Drawn(45, 2, 80), Drawn(33, 3, 100)};
  TokenRules& rules = asked[1].request.sampling.rules;
  rules.repetition_penalty = 1.3F;
  rules.presence_penalty = 0.5F;
  rules.frequency_penalty = 0.4F;
  rules.logit_bias = {{20, 2.5F}, {30, -4.0F}};
  rules.bad_ids = {40};
  asked[2].stop_after = 70;
  asked.push_back(Drawn(50, 4, 60));
  asked.back().request.samples = 3;
  asked.push_back(Drawn(70, 5, 40));
  asked.back().request.sampling.prompt_logprobs = 2;
  // A prompt with repetitions, so that guesses are often correct.
  asked.push_back(Greedy(0, 0, 90));
  for (int i = 0; i < 12; ++i) {
    const std::vector<int32_t> part = Prompt(5, 6);
    auto& tokens = asked.back().request.token_ids;
    tokens.insert(tokens.end(), part.begin(), part.end());
  }
  asked.push_back({Request(Prompt(55, 7), {}, 50)});
  asked.back().request.search.beams = 3;
  asked.push_back(Greedy(64, 8, 0));
  asked.back().request.hash_logits = false;
  asked.push_back(Greedy(80, 9, 60));
  asked.back().request.cache = CacheMode::kOff;
  for (size_t i = 0; i < asked.size(); ++i) {
    asked[i].request.tenant = std::string(1, static_cast<char>('a' + i % 3));
  }
  return asked;
}

// Returns the KV bytes of `chunks` chunks.
uint64_t KvBytesOf(const EngineOptions& options, const std::string& dir, uint64_t chunks) {
  return chunks * ChunkBytes(TestWorker(dir, options, nullptr, false)->layout());
}

// With a cache, the threads that fetch and publish decide how many requests run at a time. If these
// threads are slow, a run may need no preemption; then another run follows.
constexpr int kMostRuns = 50;

void ExpectSameInLittleMemory(const std::string& dir, EngineOptions options,
                              const std::vector<Asked>& asked, uint64_t chunks) {
  TestWorker roomy(dir, options);
  const auto want = RunAll(&roomy, asked);
  EXPECT_EQ(roomy.Counter("preemptions"), 0u);
  options.memory.kv_bytes = KvBytesOf(options, dir, chunks);
  for (const uint64_t pool : {kPoolBytes, uint64_t{0}}) {
    SCOPED_TRACE(pool);
    options.memory.pool_bytes = pool;
    uint64_t preemptions = 0;
    for (int run = 0; run < kMostRuns && preemptions == 0 && !testing::Test::HasFailure(); ++run) {
      TestWorker tight(dir, options, nullptr, /*with_cache=*/pool > 0);
      ExpectSame(RunAll(&tight, asked), want);
      preemptions = tight.Counter("preemptions");
      EXPECT_LE(tight->Stats().kv_used_bytes, options.memory.kv_bytes);
      EXPECT_TRUE(pool > 0 || tight.Counter("recomputed_tokens") > 0);
      EXPECT_EQ(tight.Counter("prompt_tokens"), roomy.Counter("prompt_tokens"));
      EXPECT_EQ(tight.Counter("generated_tokens"), roomy.Counter("generated_tokens"));
      EXPECT_EQ(tight.Counter("nondeterminism"), 0u);
      tight->Drain(absl::InfiniteFuture());
      EXPECT_EQ(tight->Stats().staged_bytes, 0u);
      EXPECT_EQ(tight->Stats().running, 0u);
    }
    EXPECT_GT(preemptions, 0u);
  }
}

class EnginePreemptionTest : public testing::TestWithParam<NamedGeometry> {};

TEST_P(EnginePreemptionTest, PreemptionKeepsEveryAnswer) {
  ExpectSameInLittleMemory(ModelDir(GetParam().geometry), InvariantOptions(), OneOfEachKind(), 20);
}

INSTANTIATE_TEST_SUITE_P(Geometries, EnginePreemptionTest, testing::ValuesIn(Geometries()),
                         [](const auto& info) { return std::string(info.param.name); });

const std::string& Dir() { return ModelDir(Geometries()[1].geometry); }

TEST(EnginePreemption, PreemptedKvStrategiesKeepTheirAnswers) {
  for (const char* cache : {"quantized", "static"}) {
    SCOPED_TRACE(cache);
    EngineOptions options = InvariantOptions();
    options.kv.cache = cache;
    const bool quantized = options.kv.cache == "quantized";
    if (quantized) options.kv.quantization = "bits=8,group=16";
    std::vector<Asked> asked;
    for (uint64_t seed = 1; seed <= 5; ++seed)
      asked.push_back(Drawn(30 + 7 * seed, seed, quantized ? 150 : 60));
    asked.push_back(Drawn(50, 9, 60));
    asked.back().request.samples = 3;
    if (quantized) {
      ExpectSameInLittleMemory(Dir(), options, asked,
                               30);  // a quantized chunk has a third of the bytes
      continue;
    }
    // A static request allocates all its memory in its first step, so only its samples are
    // preempted.
    TestWorker roomy(Dir(), options);
    const auto want = RunAll(&roomy, asked);
    options.memory.kv_bytes = KvBytesOf(options, Dir(), 18);
    TestWorker tight(Dir(), options);
    ExpectSame(RunAll(&tight, asked), want);
  }
}

TEST(EnginePreemption, PreemptedAdaptersKeepTheirAnswers) {
  const TestFolder folder;
  WriteTinyAdapter(Geometries()[1].geometry, 8, folder.path());
  EngineOptions options = InvariantOptions();
  options.adapters = {{"legal", folder.path()}};
  std::vector<Asked> asked;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    asked.push_back(Drawn(30 + 5 * seed, seed, 70));
    if (seed % 2 == 0) asked.back().request.adapter = "legal";
  }
  ExpectSameInLittleMemory(Dir(), options, asked, 11);
}

// The older requests use all memory until they end, and the searches restart until then.
TEST(EnginePreemption, PreemptedSearchFindsSameAnswer) {
  std::vector<Asked> asked = {Greedy(20, 1, 200), Greedy(20, 2, 200), Greedy(20, 3, 200),
                              Greedy(20, 6, 200), Greedy(20, 7, 200), Greedy(20, 8, 200)};
  for (const uint64_t seed : {4, 5}) {
    asked.push_back({Request(Prompt(40, seed), {}, 100)});
    asked.back().request.search.beams = 2;
  }
  ExpectSameInLittleMemory(Dir(), InvariantOptions(), asked, 19);
}

TEST(EnginePreemption, OldestRequestIsNeverPreempted) {
  EngineOptions options = InvariantOptions();
  options.memory.kv_bytes = KvBytesOf(options, Dir(), 16);
  options.memory.pool_bytes = 0;
  TestWorker worker(Dir(), options, nullptr, /*with_cache=*/false);
  std::vector<Asked> asked;
  for (uint64_t seed = 1; seed <= 6; ++seed) asked.push_back(Greedy(20, seed, 150));
  std::vector<std::unique_ptr<Followed>> runs = RunAll(&worker, asked);
  for (const auto& run : runs) ASSERT_TRUE(run->collector.error.ok()) << run->collector.error;
  EXPECT_GT(worker.Counter("preemptions"), 0u);
  EXPECT_EQ(runs[0]->collector.finished.computed_tokens, 20u);
  EXPECT_EQ(runs[0]->collector.finished.decode_steps + runs[0]->collector.finished.accepted_tokens,
            149u)
      << "each token except the first takes one decode step";
}

// Restored objects hold memory until the sequence's restore points are saved.
TEST(EnginePreemption, PreemptionReleasesRestoredPrefix) {
  const KvLayout layout = TestWorker(Dir(), InvariantOptions(), nullptr, false)->layout();
  const MemoryLimits memory;
  EngineCounters counters;
  PrefixKeeper keeper(memory, absl::Seconds(1), layout, &counters);
  Sequence sequence(1, Request(Prompt(40)), {});
  const std::shared_ptr<const KvObject> object =
      NewObject(layout, {0, layout.chunk_tokens, LayerGroup::kGlobal});
  sequence.kept.staged = std::make_unique<StagedSnapshots>(
      layout, std::vector<uint32_t>(), layout.chunk_tokens, KvObjects{object}, keeper.staging(),
      /*shares_chunks=*/true);
  EXPECT_TRUE(keeper.ReleaseStaged(&sequence));
  EXPECT_EQ(object.use_count(), 1);
  EXPECT_FALSE(keeper.ReleaseStaged(&sequence));
}

TEST(EnginePreemption, PreemptedRequestCanBeCancelled) {
  EngineOptions options = InvariantOptions();
  options.memory.kv_bytes = KvBytesOf(options, Dir(), 7);
  TestWorker worker(Dir(), options, nullptr, /*with_cache=*/false);
  Collector oldest, other;
  std::shared_ptr<EngineRequestHandle> handle;
  absl::Notification submitted;
  oldest.on_token = [&](size_t) {
    submitted.WaitForNotification();
    if (worker.Counter("preemptions") > 0) handle->Cancel();
    return true;
  };
  worker.Submit(Request(Prompt(20), {}, 120), &oldest);
  handle = worker.Submit(Request(Prompt(20, 2), {}, 120), &other);
  submitted.Notify();
  other.WaitEnd();
  EXPECT_EQ(other.error.code(), absl::StatusCode::kCancelled) << other.error;
  oldest.WaitEnd();
  EXPECT_TRUE(oldest.error.ok()) << oldest.error;
  EXPECT_EQ(worker.Counter("preemptions"), 1u);
  EXPECT_EQ(worker->Stats().running, 0u);
}

// The prompt and a chunk fit into the budget, but the whole answer does not.
TEST(EnginePreemption, AnswerLargerThanMemoryFails) {
  EngineOptions options = InvariantOptions();
  options.memory.kv_bytes = KvBytesOf(options, Dir(), 5);
  options.memory.pool_bytes = 0;
  TestWorker worker(Dir(), options, nullptr, /*with_cache=*/false);
  Collector run;
  worker.Submit(Request(Prompt(20), {}, 200), &run);
  run.WaitEnd();
  EXPECT_EQ(run.error.code(), absl::StatusCode::kResourceExhausted) << run.error;
  EXPECT_THAT(
      std::string(run.error.message()),
      HasSubstr(absl::StrCat("needs more than the limit of ", options.memory.kv_bytes, " bytes")));
  EXPECT_GE(run.tokens.size(), 60u);
  EXPECT_EQ(worker->Stats().kv_used_bytes, 0u);
}

int Environment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

// Random arrivals, lengths, budgets, kinds and tenants, on a tiny model or the model in
// HEARTH_PREEMPTED_MODEL. HEARTH_SCHEDULES: number of random schedules. HEARTH_ENGINE_THREADS:
// number of compute threads. With a real model, set HEARTH_HANG_S, and the test prints each
// schedule.
TEST(EnginePreemption, RandomPreemptionKeepsAnswers) {
  const char* const model = std::getenv("HEARTH_PREEMPTED_MODEL");
  const std::string dir = model == nullptr ? Dir() : model;
  EngineOptions options = InvariantOptions(Environment("HEARTH_ENGINE_THREADS", 2));
  if (model != nullptr) options.chunk_tokens = 32;
  const uint32_t chunk = options.chunk_tokens;
  TestWorker roomy(dir, options, nullptr, /*with_cache=*/false);
  const uint64_t chunk_bytes = ChunkBytes(roomy->layout());
  const int vocabulary = roomy->config().vocab_size;
  uint64_t preemptions = 0;
  const int schedules = Environment("HEARTH_SCHEDULES", 40);
  for (int seed = 1; seed <= schedules; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    std::vector<Asked> asked;
    uint64_t most = 0;  // number of chunks of the largest request
    for (uint64_t i = 0, count = 3 + random() % 5; i < count; ++i) {
      const uint32_t prompt = 1 + static_cast<uint32_t>(random() % (3 * chunk));
      const uint32_t answer = 1 + static_cast<uint32_t>(random() % (3 * chunk));
      Asked one = random() % 2 == 0 ? Greedy(prompt, 1, answer) : Drawn(prompt, 1, answer);
      one.request.token_ids = Prompt(prompt, random(), vocabulary);
      one.request.tenant = std::string(1, static_cast<char>('a' + random() % 3));
      if (random() % 4 == 0) one.request.cache = CacheMode::kOff;
      if (random() % 4 == 0) one.stop_after = 1 + static_cast<uint32_t>(random() % answer);
      uint32_t copies = 1;
      if (random() % 4 == 0) copies = one.request.samples = 2 + static_cast<uint32_t>(random() % 2);
      most = std::max<uint64_t>(most, (prompt + answer) / chunk + 2 + 2 * (copies - 1));
      asked.push_back(std::move(one));
    }
    EngineOptions little = options;
    little.memory.kv_bytes = (most + random() % 4) * chunk_bytes;
    little.memory.pool_bytes = random() % 2 == 0 ? 0 : kPoolBytes;
    little.max_running = 4 + static_cast<uint32_t>(random() % 12);
    TestWorker tight(dir, little, nullptr, /*with_cache=*/false);
    ExpectSame(RunAll(&tight, asked), RunAll(&roomy, asked));
    preemptions += tight.Counter("preemptions");
    if (HasFailure()) return;
    if (model != nullptr) {
      std::cout << "schedule " << seed << ", " << preemptions << " preemptions" << std::endl;
    }
  }
  EXPECT_GT(preemptions, 0u);
  RecordProperty("preemptions", static_cast<int>(preemptions));
}

}  // namespace
}  // namespace hearth
