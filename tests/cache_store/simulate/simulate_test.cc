// The cache simulator compared with published hit rates, and the store's eviction policy compared
// with its target hit rates.
#include "bench/simulate/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

constexpr SimulatedPolicy kDefault = SimulatedPolicy::kDefault;
constexpr SimulatedPolicy kLru = SimulatedPolicy::kLru;
constexpr SimulatedPolicy kOptimum = SimulatedPolicy::kOptimum;
constexpr double kSizes[] = {0.01, 0.05, 0.1, 0.25, 0.5};

const Trace& Published(const std::string& name) {
  static std::map<std::string, Trace>* traces = new std::map<std::string, Trace>;
  const auto found = traces->find(name);
  if (found != traces->end()) return found->second;
  auto trace = ReadTraceFile(absl::StrCat(HEARTH_TRACES_DIR "/", name, "_trace.jsonl.xz"));
  EXPECT_TRUE(trace.ok()) << trace.status();
  return traces->emplace(name, *std::move(trace)).first->second;
}

const ModelShape* Gemma4b() { return &kModelShapes[2]; }
double Rounded(double rate) { return std::round(rate * 1000) / 1000; }

struct Published3 {
  const char* trace;
  double lru[5], optimum[5];  // published hit rates, rounded to three digits
  double dense_bar[5];        // minimum hit rates of the default policy for token blocks
  // minimum hit rates for restore points of the 4B model, for the first four cache capacities of
  // kSizes (fractions of the KV bytes of all blocks)
  double points_bar[4];
};

const Published3 kPublished[] = {
    {"conversation",
     {.052, .195, .278, .353, .363},
     {.246, .366, .366, .366, .366},
     {.090, .220, .290, .354, .363},
     {.170, .335, .352, .360}},
    {"synthetic",
     {.034, .155, .260, .443, .589},
     {.185, .396, .506, .626, .640},
     {.041, .164, .270, .465, .600},
     {.140, .410, .540, .610}},
};

class PublishedTraceTest : public ::testing::TestWithParam<Published3> {};

TEST_P(PublishedTraceTest, LruAndOptimumMatchPublishedHitRates) {
  const Trace& trace = Published(GetParam().trace);
  for (int i = 0; i < 5; ++i) {
    EXPECT_DOUBLE_EQ(Rounded(HitRate(trace, nullptr, kLru, kSizes[i])), GetParam().lru[i])
        << kSizes[i];
    EXPECT_DOUBLE_EQ(Rounded(HitRate(trace, nullptr, kOptimum, kSizes[i])), GetParam().optimum[i])
        << kSizes[i];
  }
}

TEST_P(PublishedTraceTest, DefaultPolicyMeetsBlockCacheTargets) {
  const Trace& trace = Published(GetParam().trace);
  for (int i = 0; i < 5; ++i) {
    const double rate = HitRate(trace, nullptr, kDefault, kSizes[i]);
    EXPECT_GE(rate, GetParam().dense_bar[i]) << kSizes[i];
    EXPECT_GE(rate, HitRate(trace, nullptr, kLru, kSizes[i])) << kSizes[i];
    EXPECT_LE(rate, HitRate(trace, nullptr, kOptimum, kSizes[i])) << kSizes[i];
  }
}

TEST_P(PublishedTraceTest, DefaultPolicyMeetsRestorePointTargets) {
  const Trace& trace = Published(GetParam().trace);
  for (int i = 0; i < 4; ++i) {
    const double rate = HitRate(trace, Gemma4b(), kDefault, kSizes[i]);
    EXPECT_GE(rate, GetParam().points_bar[i]) << kSizes[i];
    EXPECT_GE(rate, HitRate(trace, Gemma4b(), kLru, kSizes[i])) << kSizes[i];
    EXPECT_LE(rate, HitRate(trace, Gemma4b(), kOptimum, kSizes[i])) << kSizes[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Traces, PublishedTraceTest, ::testing::ValuesIn(kPublished),
                         [](const auto& info) { return std::string(info.param.trace); });

// Generates request traces that were not used to tune the policy.
class Generator {
 public:
  explicit Generator(uint32_t seed) : random_(seed) {}

  uint32_t Below(uint32_t limit) { return random_() % limit; }
  double Exponential(double mean) {
    return -mean * std::log(1 - std::uniform_real_distribution<>(0, 1)(random_));
  }
  std::vector<uint32_t> Blocks(uint32_t count) {
    std::vector<uint32_t> blocks;
    for (uint32_t i = 0; i < count; ++i) blocks.push_back(next_++);
    return blocks;
  }
  void Add(double at_ms, std::vector<uint32_t> blocks) {
    requests_.emplace_back(at_ms, std::move(blocks));
  }
  Trace Finish() {
    std::stable_sort(requests_.begin(), requests_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::stringstream lines;
    for (const auto& [at, blocks] : requests_) {
      lines << R"({"timestamp":)" << static_cast<int64_t>(at) << R"(,"input_length":)"
            << blocks.size() * 512 - 100 << R"(,"hash_ids":[)" << absl::StrJoin(blocks, ",")
            << "]}\n";
    }
    auto trace = ReadTrace(lines, "generated");
    EXPECT_TRUE(trace.ok()) << trace.status();
    return *std::move(trace);
  }

 private:
  std::mt19937 random_;
  uint32_t next_ = 0;
  std::vector<std::pair<double, std::vector<uint32_t>>> requests_;
};

std::vector<uint32_t> Joined(std::vector<uint32_t> a, const std::vector<uint32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Requests for one of 300 documents, each equally likely, with a question.
Trace Uniform() {
  Generator make(1);
  std::vector<std::vector<uint32_t>> documents;
  for (int i = 0; i < 300; ++i) documents.push_back(make.Blocks(10));
  for (int i = 0; i < 10'000; ++i) {
    make.Add(i * 200, Joined(documents[make.Below(300)], make.Blocks(1)));
  }
  return make.Finish();
}

// Requests for a few popular prompts and, from time to time, many prompts that are used once.
Trace Scan() {
  Generator make(2);
  std::vector<std::vector<uint32_t>> hot;
  for (int i = 0; i < 20; ++i) hot.push_back(make.Blocks(8));
  for (int i = 0; i < 3000; ++i) {
    make.Add(i * 200,
             i % 1000 < 300 ? make.Blocks(30) : Joined(hot[make.Below(20)], make.Blocks(3)));
  }
  return make.Finish();
}

// Requests for the same documents in the same order, again and again: the worst case of LRU.
Trace Loop() {
  Generator make(3);
  std::vector<std::vector<uint32_t>> documents;
  for (int i = 0; i < 150; ++i) documents.push_back(make.Blocks(12));
  for (int i = 0; i < 3000; ++i) {
    make.Add(i * 300, Joined(documents[i % 150], make.Blocks(1)));
  }
  return make.Finish();
}

// Conversations that begin with one of several system prompts; their popularity follows Zipf's law.
Trace Conversations(double continues, double think_ms) {
  Generator make(4);
  std::vector<std::vector<uint32_t>> systems;
  std::vector<uint32_t> pick;
  for (uint32_t i = 0; i < 60; ++i) {
    systems.push_back(make.Blocks(1 + make.Below(12)));
    pick.insert(pick.end(), 120 / (i + 1), i);
  }
  for (int i = 0; i < 900; ++i) {
    double at = make.Below(1'000'000);
    const std::vector<uint32_t> system = systems[pick[make.Below(pick.size())]];
    std::vector<uint32_t> prompt = Joined(system, make.Blocks(2 + make.Below(10)));
    make.Add(at, prompt);
    while (make.Below(1000) < continues * 1000) {
      prompt.pop_back();
      prompt = Joined(prompt, make.Blocks(2 + make.Below(3)));
      at += 2000 + make.Exponential(think_ms);
      make.Add(at, prompt);
    }
  }
  return make.Finish();
}

TEST(SimulateTest, DefaultPolicyHitRateReachesLru) {
  const std::pair<const char*, Trace> traces[] = {
      {"uniform", Uniform()},
      {"scan", Scan()},
      {"loop", Loop()},
      {"short conversations", Conversations(0.6, 30'000)},
      {"long conversations", Conversations(0.9, 60'000)},
  };
  for (const auto& [name, trace] : traces) {
    for (const bool points : {false, true}) {
      const ModelShape* const model = points ? Gemma4b() : nullptr;
      for (const double size : kSizes) {
        // Allow a rounding error of the third digit, like the published hit rates. In the trace
        // "uniform", all documents are equally likely, so no policy can be better than another:
        // allow three standard deviations.
        const double margin = std::string(name) == "uniform" ? 0.01 : 0.0005;
        EXPECT_GE(HitRate(trace, model, kDefault, size) + margin, HitRate(trace, model, kLru, size))
            << name << " at " << size << (points ? ", restore points" : "");
      }
    }
  }
}

TEST(SimulateTest, UnlimitedCacheReachesOptimum) {
  const Trace trace = Loop();
  const double optimum = HitRate(trace, nullptr, kOptimum, 1);
  EXPECT_GT(optimum, 0.8);
  EXPECT_DOUBLE_EQ(HitRate(trace, nullptr, kDefault, 1), optimum);
  EXPECT_DOUBLE_EQ(HitRate(trace, nullptr, kLru, 1), optimum);
}

TEST(SimulateTest, EqualTracesGiveEqualHitRates) {
  EXPECT_DOUBLE_EQ(HitRate(Scan(), Gemma4b(), kDefault, 0.05),
                   HitRate(Scan(), Gemma4b(), kDefault, 0.05));
}

absl::Status Refusal(const std::string& text) {
  std::istringstream lines(text);
  return ReadTrace(lines, "t.jsonl").status();
}

TEST(TraceTest, ErrorNamesLineAndField) {
  const std::string good = R"({"timestamp": 5, "input_length": 600, "hash_ids": [1, 2]})"
                           "\n";
  const std::pair<const char*, const char*> bad[] = {
      {"{", "is not a JSON object"},
      {"[1]", "is not a JSON object"},
      {R"({"input_length": 1, "hash_ids": [1]})", "has no field timestamp"},
      {R"({"timestamp": "x", "input_length": 1, "hash_ids": [1]})", "field timestamp"},
      {R"({"timestamp": 6, "input_length": -1, "hash_ids": []})", "field input_length"},
      {R"({"timestamp": 6, "input_length": 1e300, "hash_ids": []})", "field input_length"},
      {R"({"timestamp": 6, "input_length": 1})", "hash_ids"},
      {R"({"timestamp": 6, "input_length": 1, "hash_ids": ["a"]})", "hash_ids"},
      {R"({"timestamp": 6, "input_length": 1, "hash_ids": [-1]})", "hash_ids"},
      {R"({"timestamp": 6, "input_length": 1100, "hash_ids": [1]})", "make 3"},
      {R"({"timestamp": 4, "input_length": 1, "hash_ids": [1]})", "timestamp goes back"},
  };
  for (const auto& [line, why] : bad) {
    const absl::Status status = Refusal(good + "\n" + line);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(std::string(status.message()), HasSubstr("t.jsonl:3: ")) << line;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why)) << line;
  }
  EXPECT_THAT(std::string(Refusal("").message()), HasSubstr("holds no block"));
  EXPECT_TRUE(Refusal(good).ok());
}

TEST(TraceTest, EqualPrefixesShareBlocks) {
  std::istringstream lines(R"({"timestamp": 0, "input_length": 1024, "hash_ids": [7, 8]})"
                           "\n"
                           R"({"timestamp": 1, "input_length": 1030, "hash_ids": [7, 8, 9]})"
                           "\n"
                           R"({"timestamp": 1.5, "input_length": 1024, "hash_ids": [9, 8]})"
                           "\n");
  const auto trace = ReadTrace(lines, "t");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->unique_blocks, 5u);
  EXPECT_EQ(trace->unique_full_blocks, 4u);
  EXPECT_EQ(trace->requests[1].blocks[1], trace->requests[0].blocks[1]);
  EXPECT_NE(trace->requests[2].blocks[1], trace->requests[0].blocks[1]);
}

// Ten stores without RAM of their own share an engine. Each request goes to a random store.
TEST(FleetTest, SharedEngineMatchesLruCache) {
  const Trace& trace = Published("conversation");
  FleetShape fleet;
  fleet.nodes = 10;
  fleet.shared_blocks = static_cast<uint64_t>(0.1 * trace.unique_blocks);
  const FleetRates rates = SimulateFleet(trace, fleet);
  EXPECT_GE(rates.found, 0.97 * HitRate(trace, nullptr, kLru, 0.1));
  EXPECT_GE(rates.found, 0.9 * HitRate(trace, nullptr, kDefault, 0.1));
  EXPECT_EQ(rates.shared, rates.found);
  // Redis's default number of samples is too small to find the oldest value.
  fleet.samples = 5;
  EXPECT_LT(SimulateFleet(trace, fleet).found, rates.found);
}

TEST(FleetTest, RequestAffinityRaisesHitRate) {
  const Trace& trace = Published("synthetic");
  FleetShape fleet;
  fleet.nodes = 10;
  fleet.node_blocks = trace.unique_blocks / 100;
  const FleetRates random = SimulateFleet(trace, fleet);
  EXPECT_EQ(random.shared, 0);
  fleet.affinity = true;
  EXPECT_GT(SimulateFleet(trace, fleet).found, 2 * random.found);
  fleet.affinity = false;
  fleet.shared_blocks = 10 * fleet.node_blocks;
  EXPECT_GT(SimulateFleet(trace, fleet).found, 2 * random.found);
}

}  // namespace
}  // namespace hearth
