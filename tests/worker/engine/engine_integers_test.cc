// Engines with int8 products and bfloat16 KV, on different integer kernels: one engine restores and
// continues KV that another engine computed, with the same bits as a run without a cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/test_folder.h"
#include "tests/support/tiny_adapter.h"
#include "tests/worker/engine/engine_harness.h"
#include "worker/kernels/integer_product.h"

namespace hearth {
namespace {

constexpr uint32_t kAnswer = 12, kPromptTokens = 150;
const char kAdapter[] = "legal";

// The kernel that publishes KV, and the kernel that restores the KV.
using Kernels = std::pair<IntegerKernel, IntegerKernel>;

class EngineIntegers : public testing::TestWithParam<Kernels> {
 protected:
  void SetUp() override {
    const std::vector<IntegerKernel> usable = UsableIntegerKernels();
    for (const IntegerKernel kernel : {GetParam().first, GetParam().second}) {
      if (std::find(usable.begin(), usable.end(), kernel) == usable.end()) {
        GTEST_SKIP() << "this CPU has no " << IntegerKernelName(kernel);
      }
    }
    WriteTinyAdapter(geometry_, 8, folder_.path());
    options_ = InvariantOptions();
    options_.weights = WeightsChoice::kQ8_0;
    options_.arithmetic = ArithmeticChoice::kInt8;
    options_.kv_dtype = KvDtypeChoice::kBFloat16;
    options_.adapters = {{kAdapter, folder_.path()}};
  }
  void TearDown() override {
    const std::vector<IntegerKernel> usable = UsableIntegerKernels();
    if (!usable.empty()) ForceIntegerKernel(usable.back());
  }

  // Returns requests whose steps differ from those of a plain prefill.
  static std::map<std::string, EngineRequest> Requests() {
    // The last tokens of the prompt repeat, so that speculation can guess tokens.
    std::vector<int32_t> prompt = Prompt(kPromptTokens);
    prompt.insert(prompt.end(), prompt.end() - 40, prompt.end());
    const EngineRequest plain = Request(prompt, {kPromptTokens}, kAnswer);
    std::map<std::string, EngineRequest> requests{
        {"guesses", plain}, {"adapter", plain}, {"beams", plain}, {"samples", plain}};
    requests["adapter"].adapter = kAdapter;
    requests["beams"].search.beams = 3;
    requests["samples"].samples = 2;
    requests["samples"].sampling.temperature = 1;
    // Separate tenants share no prefixes.
    for (auto& [name, request] : requests) request.tenant = name;
    return requests;
  }

  const TinyGeometry geometry_ = Geometries()[1].geometry;
  const TestFolder folder_;
  EngineOptions options_;
};

TEST_P(EngineIntegers, RestoresKvOfOtherIntegerKernel) {
  ForceIntegerKernel(GetParam().first);
  TestWorker publisher(ModelDir(geometry_), options_);
  EXPECT_EQ(publisher->arithmetic(), "int8/32/1");
  std::map<std::string, std::unique_ptr<Collector>> cold;
  for (const auto& [name, request] : Requests()) cold[name] = publisher.Run(request);
  publisher->Drain(absl::InfiniteFuture());

  ForceIntegerKernel(GetParam().second);
  EngineOptions options = options_;
  options.cache.audit_rate = 1;
  options.memory.pool_bytes = 0;
  TestWorker reader(ModelDir(geometry_), options, publisher.cache());
  for (auto& [name, request] : Requests()) {
    SCOPED_TRACE(name);
    request.cache = CacheMode::kRead;
    const auto warm = reader.Run(request);
    ASSERT_TRUE(warm->error.ok()) << warm->error;
    EXPECT_GE(warm->started.cached_tokens, kPromptTokens);
    EXPECT_EQ(warm->finished.first_logits_sha256, cold[name]->finished.first_logits_sha256);
    EXPECT_EQ(warm->tokens, cold[name]->tokens);
  }
  while (reader.Counter("audits") + reader.Counter("audits_skipped") < Requests().size()) {
    std::this_thread::yield();
  }
  EXPECT_GT(reader.Counter("audits"), 0u);
  EXPECT_EQ(reader.Counter("audits_wrong"), 0u);
  EXPECT_EQ(publisher.cache()->conflicts(), 0);
}

TEST_P(EngineIntegers, ResumesStateOfOtherIntegerKernel) {
  ForceIntegerKernel(GetParam().first);
  TestWorker first(ModelDir(geometry_), options_, nullptr, /*with_cache=*/false);
  EngineRequest request = Request(Prompt(kPromptTokens), {}, 2 * kAnswer);
  const auto whole = first.Run(request);
  request.token_ids.insert(request.token_ids.end(), whole->tokens.begin(),
                           whole->tokens.begin() + kAnswer);
  request.max_new_tokens = kAnswer;
  EngineRequest all = request;
  all.token_ids.pop_back();
  all.max_new_tokens = 0;
  all.cache = CacheMode::kRead;
  Collector saved;
  EngineCallbacks callbacks = saved.Callbacks(/*writes=*/false);
  absl::StatusOr<std::string> state;
  callbacks.on_snapshot = [&](const SnapshotMaker& make) { state = make(); };
  ASSERT_TRUE(first->Submit(all, std::move(callbacks)).ok());
  saved.WaitEnd();
  ASSERT_TRUE(state.ok()) << state.status();

  ForceIntegerKernel(GetParam().second);
  TestWorker second(ModelDir(geometry_), options_, nullptr, /*with_cache=*/false);
  ASSERT_TRUE(second->AddSnapshot("default", *state).ok());
  const auto rest = second.Run(request);
  EXPECT_EQ(rest->started.cached_tokens, request.token_ids.size() - 1);
  EXPECT_EQ(rest->tokens,
            std::vector<int32_t>(whole->tokens.begin() + kAnswer, whole->tokens.end()));
}

INSTANTIATE_TEST_SUITE_P(Kernels, EngineIntegers,
                         testing::Values(Kernels{IntegerKernel::kAvx2, IntegerKernel::kAvx2},
                                         Kernels{IntegerKernel::kAvx2, IntegerKernel::kAvxVnni},
                                         Kernels{IntegerKernel::kAvxVnni,
                                                 IntegerKernel::kAvx512Vnni},
                                         Kernels{IntegerKernel::kAvx512Vnni, IntegerKernel::kAvx2}),
                         [](const auto& param_info) {
                           return std::string(IntegerKernelName(param_info.param.first)) + "_to_" +
                                  IntegerKernelName(param_info.param.second);
                         });

}  // namespace
}  // namespace hearth
