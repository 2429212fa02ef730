// The engine with LoRA adapters: each adapter has separate keys and values, even if requests of
// several adapters share a batch. adapter_oracle.py checks the adapters' results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/test_folder.h"
#include "tests/support/tiny_adapter.h"
#include "tests/worker/engine/engine_harness.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class EngineAdapters : public ::testing::Test {
 protected:
  EngineAdapters() {
    uint64_t seed = 7;
    for (const char* name : {"legal", "medical"}) {
      std::filesystem::create_directory(folder_.File(name));
      WriteTinyAdapter(kGeometry, ++seed, folder_.File(name));
    }
  }
  EngineOptions Options() const {
    EngineOptions options = InvariantOptions();
    options.adapters = {{"legal", folder_.File("legal")}, {"medical", folder_.File("medical")}};
    return options;
  }
  static EngineRequest Through(const std::string& adapter, uint32_t samples = 1) {
    EngineRequest request = Request(Prompt(100), {90}, 6);
    request.adapter = adapter;
    request.samples = samples;
    return request;
  }

  const TinyGeometry& kGeometry = Geometries()[0].geometry;
  const TestFolder folder_;
};

TEST_F(EngineAdapters, EachAdapterHasItsOwnKv) {
  TestWorker worker(ModelDir(kGeometry), Options(), nullptr, /*with_cache=*/false);
  std::vector<Digest> digests;
  for (const char* name : {"", "legal", "medical"}) {
    SCOPED_TRACE(name);
    const auto cold = worker.Run(Through(name)), warm = worker.Run(Through(name));
    ASSERT_TRUE(cold->error.ok()) << cold->error;
    EXPECT_EQ(cold->started.cached_tokens, 0u);
    EXPECT_EQ(warm->started.cached_tokens, 96u);
    EXPECT_EQ(warm->finished.first_logits_sha256, cold->finished.first_logits_sha256);
    EXPECT_EQ(warm->tokens, cold->tokens);
    digests.push_back(cold->finished.first_logits_sha256);
  }
  EXPECT_NE(digests[0], digests[1]);
  EXPECT_NE(digests[0], digests[2]);
  EXPECT_NE(digests[1], digests[2]);
}

TEST_F(EngineAdapters, ConcurrentAdaptersKeepTheirBits) {
  EngineOptions options = Options();
  options.memory.pool_bytes = 0;
  TestWorker worker(ModelDir(kGeometry), options, nullptr, /*with_cache=*/false);
  const std::vector<std::string> names = {"", "legal", "medical", "legal", ""};
  std::vector<std::unique_ptr<Collector>> alone;
  for (const std::string& name : names) alone.push_back(worker.Run(Through(name)));
  std::vector<Collector> beside(names.size());
  for (size_t i = 0; i < names.size(); ++i) worker.Submit(Through(names[i]), &beside[i]);
  for (size_t i = 0; i < names.size(); ++i) {
    beside[i].WaitEnd();
    EXPECT_EQ(beside[i].tokens, alone[i]->tokens) << i;
    EXPECT_EQ(beside[i].finished.first_logits_sha256, alone[i]->finished.first_logits_sha256);
  }
}

TEST_F(EngineAdapters, AllSamplesUseTheAdapter) {
  TestWorker worker(ModelDir(kGeometry), Options(), nullptr, /*with_cache=*/false);
  std::vector<std::vector<int32_t>> samples(2);
  const auto collect = [&](Collector* collector, const EngineRequest& request) {
    EngineCallbacks callbacks = collector->Callbacks();
    const auto count = callbacks.on_token;
    callbacks.on_token = [&samples, count](const SampledToken& token) {
      samples[token.sample].push_back(token.id);
      return count(token);
    };
    ASSERT_TRUE(worker->Submit(request, std::move(callbacks)).ok());
    collector->WaitAll();
  };
  Collector collector;
  collect(&collector, Through("legal", 2));  // greedy: both samples have the same tokens
  EXPECT_EQ(samples[0].size(), 6u);
  EXPECT_EQ(samples[0], samples[1]);
  EXPECT_EQ(samples[0], worker.Run(Through("legal"))->tokens);
}

TEST_F(EngineAdapters, FingerprintAndErrorsNameAdapters) {
  TestWorker worker(ModelDir(kGeometry), Options(), nullptr, /*with_cache=*/false);
  ASSERT_EQ(worker->adapters().size(), 2u);
  for (const AdapterInfo& adapter : worker->adapters()) {
    EXPECT_EQ(adapter.rank, 3);
    const auto differences = Compare(worker->fingerprint(), adapter.fingerprint);
    ASSERT_EQ(differences.size(), 1u);
    EXPECT_EQ(differences[0].field, "adapters_sha256");
    EXPECT_EQ(differences[0].ours, "none");
  }
  EXPECT_NE(worker->adapters()[0].fingerprint.digest(), worker->adapters()[1].fingerprint.digest());
  const absl::Status unknown = worker->Submit(Through("law"), {}).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.message()),
              AllOf(HasSubstr("adapter: "), HasSubstr("legal, medical; got \"law\"")));
}

TEST_F(EngineAdapters, InvalidAdapterIsRefusedAtStart) {
  EngineOptions options = Options();
  options.model_dir = ModelDir(kGeometry);
  options.adapters = {{"gone", folder_.File("gone")}};
  EXPECT_THAT(std::string(Engine::Create(options).status().message()),
              AllOf(HasSubstr("adapter gone: "), HasSubstr("adapter_config.json")));
  options.adapters = {{"a b", folder_.File("legal")}};
  EXPECT_THAT(std::string(options.Validate().message()), HasSubstr("got \"a b\""));
  options.adapters = {{"legal", folder_.File("legal")}};
  options.exactness = ExactnessChoice::kExact;
  const absl::Status exact = Engine::Create(options).status();
  EXPECT_EQ(exact.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(exact.message()), HasSubstr("needs exactness invariant"));
}

}  // namespace
}  // namespace hearth
