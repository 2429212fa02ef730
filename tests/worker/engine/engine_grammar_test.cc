// Answers that obey a grammar: the tokens depend only on the prompt, the seed and the schema. They
// do not depend on guessed tokens, cached prefixes or other requests of the batch, nor on whether
// another worker drew the first tokens.

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/engine/engine_harness.h"
#include "tests/worker/text/tiny_tokenizer.h"
#include "worker/text/grammar.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

// Folder of a model whose vocabulary is larger than the tokenizer's.
const std::string& GrammarDir() {
  static const std::string* const dir = [] {
    TinyGeometry geometry = Geometries()[1].geometry;
    geometry.vocab_size = TinyTokenizer().size() + 5;
    return new std::string(ModelDir(geometry));
  }();
  return *dir;
}

GrammarEngine& EngineGrammars() {
  static auto* const grammars =
      new GrammarEngine(&TinyTokenizer(), {1}, TinyTokenizer().size() + 5);
  return *grammars;
}

std::shared_ptr<const Grammar> Compiled(const GrammarSpec& spec) {
  auto grammar = EngineGrammars().Compile(spec);
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return *grammar;
}

// Every answer that obeys this schema ends.
constexpr char kShip[] = R"({"type": "object", "properties": {
  "ship": {"type": "string", "maxLength": 9},
  "flag": {"enum": ["red", "redder", "blue"]},
  "sails": {"type": "integer", "minimum": 0, "maximum": 9999},
  "holds": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4}
}, "required": ["ship", "flag", "sails", "holds"]})";

EngineRequest GrammarRequest(uint64_t number, const char* schema = kShip) {
  EngineRequest request = Request(Prompt(20 + 23 * static_cast<size_t>(number), number), {}, 120);
  request.ignore_eos = false;
  request.hash_logits = true;
  request.sampling.report_logprobs = true;
  if (number % 2 == 0) request.sampling.temperature = 1;
  request.sampling.seed = number;
  request.grammar = Compiled({schema, {}, false});
  return request;
}

// Returns the request's grammar after the first_draw tokens.
std::shared_ptr<const Grammar> Continued(const EngineRequest& request) {
  const auto drawn = absl::MakeConstSpan(request.token_ids).last(request.first_draw);
  auto grammar = ContinueGrammar(*request.grammar, drawn, [] { return absl::OkStatus(); });
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return *grammar;
}

std::string JsonTextOf(const Collector& run) { return TinyTokenizer().Decode(run.tokens, false); }

TEST(EngineGrammarTest, AnswerIsIndependentOfComputation) {
  EngineOptions plain_options = InvariantOptions();
  plain_options.speculate = 0;
  TestWorker plain(GrammarDir(), plain_options, nullptr, /*with_cache=*/false);
  std::vector<std::unique_ptr<Collector>> wanted;
  for (uint64_t i = 1; i <= 6; ++i) {
    wanted.push_back(plain.Run(GrammarRequest(i)));
    ASSERT_TRUE(wanted.back()->error.ok()) << wanted.back()->error;
    const auto json = nlohmann::json::parse(JsonTextOf(*wanted.back()), nullptr, false);
    EXPECT_EQ(json.size(), 4u) << JsonTextOf(*wanted.back());
    EXPECT_EQ(wanted.back()->finished.reason, FinishReason::kEos);
  }
  TestWorker busy(GrammarDir(), InvariantOptions());
  uint32_t accepted = 0;
  for (int round = 0; round < 2; ++round) {
    std::vector<std::unique_ptr<Collector>> got;
    for (uint64_t i = 1; i <= 6; ++i) {
      got.push_back(std::make_unique<Collector>());
      busy.Submit(GrammarRequest(i), got.back().get());
    }
    for (size_t i = 0; i < got.size(); ++i) {
      got[i]->WaitAll();
      EXPECT_EQ(got[i]->tokens, wanted[i]->tokens) << i;
      EXPECT_EQ(got[i]->finished.samples[0].logits_sha256,
                wanted[i]->finished.samples[0].logits_sha256);
      accepted += got[i]->finished.accepted_tokens;
    }
  }
  EXPECT_GT(accepted, 0u);
  EXPECT_GT(busy.Counter("forced_tokens"), 0u);
  EXPECT_GT(busy.Counter("grammar_masks"), 0u);
  for (uint64_t i = 1; i <= 6; ++i) {
    const std::vector<int32_t>& whole = wanted[i - 1]->tokens;
    EngineRequest rest = GrammarRequest(i);
    rest.token_ids.insert(rest.token_ids.end(), whole.begin(), whole.begin() + 9);
    rest.first_draw = 9;
    rest.grammar = Continued(rest);
    EXPECT_EQ(busy.Run(rest)->tokens, std::vector<int32_t>(whole.begin() + 9, whole.end())) << i;
  }
}

TEST(EngineGrammarTest, SampleEqualsRequestWithItsSeed) {
  TestWorker worker(GrammarDir(), InvariantOptions());
  EngineRequest several = GrammarRequest(2);
  several.samples = 4;
  Collector run;
  std::vector<std::vector<int32_t>> answers(4);
  EngineCallbacks callbacks = run.Callbacks();
  callbacks.on_token = [&](const SampledToken& token) {
    answers[token.sample].push_back(token.id);
    return true;
  };
  ASSERT_TRUE(worker->Submit(several, std::move(callbacks)).ok());
  run.WaitEnd();
  for (uint32_t i = 0; i < 4; ++i) {
    EngineRequest one = GrammarRequest(2);
    one.sampling.seed = SeedOfSample(2, i);
    EXPECT_EQ(answers[i], worker.Run(one)->tokens) << i;
  }
}

TEST(EngineGrammarTest, LogitsAreUnchanged) {
  TestWorker worker(GrammarDir(), InvariantOptions());
  EngineRequest request = GrammarRequest(1), plain = request;
  plain.grammar = nullptr;
  EXPECT_EQ(worker.Run(request)->finished.first_logits_sha256,
            worker.Run(plain)->finished.first_logits_sha256);
  // The first token has the same log probability as in an unconstrained answer that is biased to
  // begin with this token.
  const auto first_of = [&](EngineRequest asked) {
    SampledToken first;
    Collector run;
    EngineCallbacks callbacks = run.Callbacks();
    callbacks.on_token = [&](const SampledToken& token) {
      first = token;
      return false;
    };
    EXPECT_TRUE(worker->Submit(std::move(asked), std::move(callbacks)).ok());
    run.WaitAll();
    return first;
  };
  const SampledToken first = first_of(request);
  plain.sampling.rules.logit_bias = {{first.id, 100}};
  EXPECT_EQ(first_of(plain).logprob, first.logprob);
}

TEST(EngineGrammarTest, ForcedTextNeedsFewSteps) {
  TestWorker worker(GrammarDir(), InvariantOptions());
  const auto run =
      worker.Run(GrammarRequest(3, R"({"const": "the keeper of the light climbs the stairs"})"));
  EXPECT_EQ(JsonTextOf(*run), "\"the keeper of the light climbs the stairs\"");
  EXPECT_EQ(run->finished.reason, FinishReason::kEos);
  EXPECT_LT(2 * run->finished.decode_steps, run->finished.generated_tokens);
}

TEST(EngineGrammarTest, AbsentTriggerChangesNothing) {
  TestWorker worker(GrammarDir(), InvariantOptions());
  for (uint64_t i = 1; i <= 4; ++i) {
    EngineRequest free = GrammarRequest(i);
    free.grammar = nullptr;
    EngineRequest lazy = free;
    lazy.grammar = Compiled({kShip, {"{\"ship\":"}, false});
    const auto want = worker.Run(free), got = worker.Run(lazy);
    EXPECT_EQ(got->tokens, want->tokens) << i;
    EXPECT_EQ(got->finished.samples[0].logits_sha256, want->finished.samples[0].logits_sha256);
  }
}

TEST(EngineGrammarTest, ContinuedAnswerObeysGrammarAfterTrigger) {
  TestWorker worker(GrammarDir(), InvariantOptions());
  EngineRequest request = GrammarRequest(5);
  request.grammar = Compiled({kShip, {"{\"ship\":"}, false});
  const std::vector<int32_t> drawn = TinyTokenizer().Encode("the sea\n {\"ship\":");
  request.token_ids.insert(request.token_ids.end(), drawn.begin(), drawn.end());
  request.first_draw = drawn.size();
  request.grammar = Continued(request);
  const auto run = worker.Run(request);
  const std::string text = "{\"ship\":" + JsonTextOf(*run);
  EXPECT_EQ(nlohmann::json::parse(text, nullptr, false).size(), 4u) << text;
}

TEST(EngineGrammarTest, ConflictingOptionIsRefused) {
  TestWorker worker(GrammarDir(), InvariantOptions());
  const auto refusal = [&](void (*change)(EngineRequest*)) {
    EngineRequest request = GrammarRequest(1);
    request.hash_logits = false;
    request.sampling.report_logprobs = false;
    change(&request);
    return std::string(worker->Submit(request, {}).status().message());
  };
  EXPECT_EQ(refusal([](EngineRequest* r) { r->search.beams = 2; }),
            "grammar: cannot be combined with beams 2");
  EXPECT_EQ(refusal([](EngineRequest* r) { r->ignore_eos = true; }),
            "grammar: cannot be combined with ignore_eos");
  EXPECT_EQ(refusal([](EngineRequest* r) { r->sampling.rules.min_tokens = 3; }),
            "grammar: cannot be combined with sampling.min_tokens 3");
}

TEST(EngineGrammarTest, NoAllowedTokenFailsOnlyRequest) {
  TestWorker worker(GrammarDir(), InvariantOptions());
  EngineRequest request = GrammarRequest(1, R"({"const": 7})");
  Collector other;
  worker.Submit(GrammarRequest(2), &other);
  request.sampling.rules.bad_ids = {TinyTokenizer().Encode("7")[0]};
  const auto run = worker.Run(request);
  EXPECT_EQ(run->error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(run->error.message(),
            "sampling.bad_token_ids: must leave a token that the grammar allows; none is left");
  other.WaitAll();
  EXPECT_TRUE(other.error.ok()) << other.error;
  EXPECT_EQ(worker.Counter("requests_failed"), 0u);
}

// A grammar whose library reports an exceeded limit after five tokens.
class LimitedGrammar final : public Grammar {
 public:
  LimitedGrammar() : Grammar(GrammarSpec()) {}
  std::unique_ptr<GrammarState> NewState() const override { return std::make_unique<State>(); }

 private:
  class State final : public GrammarState {
   public:
    absl::StatusOr<absl::Span<const uint32_t>> Allow() override {
      if (accepted_ == 5) return absl::InvalidArgumentError("grammar.json_schema: too much fuel");
      return absl::Span<const uint32_t>();
    }
    absl::StatusOr<bool> Accept(int32_t /*token*/) override { return ++accepted_ <= 5; }
    std::vector<int32_t> Forced(size_t /*most*/) override { return {}; }
    absl::StatusOr<size_t> CountAllowed(absl::Span<const int32_t> tokens) override {
      return tokens.size();
    }
    bool MustEnd() override { return false; }
    std::unique_ptr<GrammarState> Clone() const override { return std::make_unique<State>(*this); }

   private:
    int accepted_ = 0;
  };
};

// A grammar that allows each token but accepts none, or accepts the 32nd.
class RefusingGrammar final : public Grammar {
 public:
  explicit RefusingGrammar(int refused) : Grammar(GrammarSpec()), refused_(refused) {}
  std::unique_ptr<GrammarState> NewState() const override {
    return std::make_unique<State>(refused_);
  }

 private:
  class State final : public GrammarState {
   public:
    explicit State(int refused) : refused_(refused) {}
    absl::StatusOr<absl::Span<const uint32_t>> Allow() override {
      return absl::Span<const uint32_t>();
    }
    absl::StatusOr<bool> Accept(int32_t /*token*/) override {
      if (++drawn_ <= refused_) return false;
      drawn_ = 0;
      return true;
    }
    std::vector<int32_t> Forced(size_t /*most*/) override { return {}; }
    absl::StatusOr<size_t> CountAllowed(absl::Span<const int32_t> tokens) override {
      return tokens.size();
    }
    bool MustEnd() override { return false; }
    std::unique_ptr<GrammarState> Clone() const override { return std::make_unique<State>(*this); }

   private:
    int refused_, drawn_ = 0;
  };
  const int refused_;
};

TEST(EngineGrammarTest, RefusedTokensAreDrawnAgainAFewTimes) {
  TestWorker worker(GrammarDir(), InvariantOptions());
  const auto run_with = [&](int refused) {
    EngineRequest request = GrammarRequest(1);
    request.sampling.rules.bad_ids = {1};
    request.max_new_tokens = 3;
    request.grammar = std::make_shared<RefusingGrammar>(refused);
    return worker.Run(request);
  };
  EXPECT_EQ(run_with(31)->tokens.size(), 3u);
  EXPECT_EQ(worker.Counter("grammar_limits"), 0u);
  Collector other;
  worker.Submit(GrammarRequest(2), &other);
  const auto run = run_with(32);
  EXPECT_EQ(run->error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(run->error.message()),
              HasSubstr("drew 32 other tokens in one place of the answer"));
  EXPECT_TRUE(run->tokens.empty());
  EXPECT_EQ(worker.Counter("grammar_limits"), 1u);
  EXPECT_EQ(worker.Counter("requests_failed"), 0u);
  other.WaitAll();
  EXPECT_TRUE(other.error.ok()) << other.error;
}

TEST(EngineGrammarTest, ExceededLimitFailsOnlyRequest) {
  TestWorker worker(GrammarDir(), InvariantOptions());
  EngineRequest request = GrammarRequest(1);
  request.sampling.rules.bad_ids = {1};
  request.grammar = std::make_shared<LimitedGrammar>();
  Collector other;
  worker.Submit(GrammarRequest(2), &other);
  const auto run = worker.Run(request);
  EXPECT_EQ(run->error, absl::InvalidArgumentError("grammar.json_schema: too much fuel"));
  EXPECT_EQ(run->tokens.size(), 5u);
  EXPECT_EQ(worker.Counter("grammar_limits"), 1u);
  other.WaitAll();
  EXPECT_TRUE(other.error.ok()) << other.error;
}

}  // namespace
}  // namespace hearth
