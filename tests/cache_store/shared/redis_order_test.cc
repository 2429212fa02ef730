// The order of commands of the shared engine: an erase takes effect after all writes that were sent
// before it.
#include <gtest/gtest.h>

#include "tests/cache_store/shared/fake_redis.h"
#include "tests/cache_store/shared/redis_kit.h"

namespace hearth {
namespace {

using Answer = FakeRedis::Answer;
using Words = FakeRedis::Words;

absl::Time Shortly() { return absl::Now() + absl::Milliseconds(100); }

TEST(RedisOrder, EraseFollowsWriteWithPassedDeadline) {
  for (const size_t bytes : {size_t{100}, size_t{100'000}}) {
    FakeRedis redis([](const Words& words) -> Answer {
      if (words[0] == "CLUSTER") return {kNoCluster};
      if (words[0] == "SET") return {"", false, false, /*ignores_input=*/true};
      return {":0\r\n"};
    });
    const auto engine = OpenAt({redis.address()}, kShortSilence);
    const std::string value(bytes, 'v');
    EXPECT_FALSE(engine->Set({{"key", value}}, Shortly())[0].ok());
    EXPECT_FALSE(engine->Erase({"key"}, Shortly())[0].ok()) << bytes;
    // After the connection was closed, the rest of the write must not arrive either.
    const absl::Time limit = Soon();
    bool is_erased = false;
    while ((!is_erased || redis.resets() == 0) && absl::Now() < limit) {
      is_erased = engine->Erase({"key"}, limit)[0].ok();
    }
    EXPECT_TRUE(is_erased) << bytes;
    EXPECT_GE(redis.resets(), 1) << bytes;
  }
}

}  // namespace
}  // namespace hearth
