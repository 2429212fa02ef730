// A prefix larger than the worker's pool and larger than --staging-bytes.

#include <string>

#include "gtest/gtest.h"
#include "tests/worker/engine/engine_harness.h"

namespace hearth {
namespace {

TEST(EngineLargeTest, PrefixLargerThanPoolIsPublished) {
  const std::string& dir = ModelDir(Geometries()[1].geometry);
  EngineOptions options = InvariantOptions();
  const uint64_t chunk = ChunkBytes(TestWorker(dir, options, nullptr, false)->layout());
  options.memory.pool_bytes = 2 * chunk;
  // For a prompt of whole chunks, only local chunks that leave the window count as staged.
  options.memory.staging_bytes = 8 * chunk;
  TestWorker worker(dir, options);
  const EngineRequest request = Request(Prompt(400), {}, 0);
  const auto first = worker.Run(request);
  ASSERT_TRUE(first->error.ok()) << first->error;
  EXPECT_EQ(first->outcome.published_tokens, 400u) << first->outcome.note;
  EXPECT_GT(first->outcome.bytes_sent, options.memory.staging_bytes);
  EXPECT_EQ(worker.Counter("staging_skips"), 0u);
  EXPECT_GE(worker.Counter("pool_too_large"), 1u) << "prefixes too large for the pool are counted";
  TestWorker second(dir, options, worker.cache());
  EngineRequest next = Request(ForkedPrompt(400, 420, 1, 7), {}, 2);
  next.cache = CacheMode::kRead;
  EXPECT_EQ(second.Run(next)->started.cached_tokens, 400u);
  EXPECT_GE(second.Counter("pool_too_large"), 1u);
}

}  // namespace
}  // namespace hearth
