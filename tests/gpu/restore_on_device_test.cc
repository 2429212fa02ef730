// A prefix restored from the gpu tier of an embedded store gives the bits of one that was computed,
// on a libtorch that has the device too.
#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "services/programs/store_link.h"
#include "services/serving/calls/admission.h"
#include "tests/worker/engine/engine_harness.h"

namespace hearth {
namespace {

TEST(RestoreOnDevice, GivesTheSameLogitsAsComputing) {
  EngineOptions options = TestWorker::SmallOptions();
  options.device = "cuda";
  options.dtype = "float32";
  options.memory.pool_bytes = 0;
  options.model_dir = ModelDir(Geometries()[1].geometry);
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(options);
  if (absl::IsFailedPrecondition(engine.status())) GTEST_SKIP() << engine.status().message();
  ASSERT_TRUE(engine.ok()) << engine.status();
  Admission admission;
  StoreLink::Options link_options;
  link_options.spec = "embedded:";  // in RAM only
  link_options.device = "cuda";
  link_options.gpu_bytes = 64 << 20;
  auto link = StoreLink::Open(link_options, **engine, &admission);
  ASSERT_TRUE(link.ok()) << link.status();
  (*engine)->SetCache((*link)->cache());
  const auto run = [&](CacheMode cache) {
    EngineRequest request = Request(Prompt(90), {50});
    request.cache = cache;
    auto collector = std::make_unique<Collector>();
    const bool writes = cache == CacheMode::kDefault;
    auto handle = (*engine)->Submit(std::move(request), collector->Callbacks(writes));
    EXPECT_TRUE(handle.ok()) << handle.status();
    collector->WaitAll();
    return collector;
  };
  const auto cold = run(CacheMode::kDefault);
  ASSERT_TRUE(cold->error.ok()) << cold->error;
  const absl::Time patience = absl::Now() + kHang;
  std::unique_ptr<Collector> warm;
  do {
    ASSERT_LT(absl::Now(), patience) << "nothing was copied to the device";
    warm = run(CacheMode::kRead);
    EXPECT_EQ(warm->started.cached_tokens, 80u);
    EXPECT_EQ(warm->finished.first_logits_sha256, cold->finished.first_logits_sha256);
    EXPECT_EQ(warm->tokens, cold->tokens);
  } while (warm->started.source_tier != Tier::kGpu);
  engine->reset();
}

}  // namespace
}  // namespace hearth
