// Expiries of shared values: stores and the fleet simulator compute the same.
#include "cache_store/shared/shared_ttl_policy.h"

#include <gtest/gtest.h>

#include <random>

#include "bench/simulate/simulate.h"
#include "tests/cache_store/shared/shared_kit.h"

namespace hearth {
namespace {

constexpr uint32_t kChunk = 16;
constexpr uint32_t kLongest = 12;  // longest prompt, in blocks

TEST(SharedTtlPolicy, CloseUsesExtendExpiryOnce) {
  SharedTtlPolicy lives(absl::Hours(24));
  const absl::Time start = absl::FromUnixSeconds(1'700'000'000);
  EXPECT_TRUE(lives.ExtendsExpiry(1, start));
  EXPECT_FALSE(lives.ExtendsExpiry(1, start + absl::Seconds(59)));
  EXPECT_TRUE(lives.ExtendsExpiry(2, start + absl::Seconds(59)));
  EXPECT_TRUE(lives.ExtendsExpiry(1, start + absl::Seconds(60)));
  EXPECT_FALSE(lives.ExtendsExpiry(1, start + absl::Seconds(61)));
  SharedTtlPolicy short_lives(absl::Seconds(16));
  EXPECT_TRUE(short_lives.ExtendsExpiry(1, start));
  EXPECT_TRUE(short_lives.ExtendsExpiry(1, start + absl::Seconds(1)));
}

TEST(SharedTtlPolicy, DeeperChunksExpireEarlier) {
  const absl::Duration ttl = absl::Hours(24);
  EXPECT_EQ(SharedTtlPolicy::TtlOf(ttl, 0, true), ttl);
  EXPECT_EQ(SharedTtlPolicy::TtlOf(ttl, 5, true), ttl - absl::Milliseconds(5));
  EXPECT_EQ(SharedTtlPolicy::TtlOf(absl::Seconds(8), 9999, true), absl::Seconds(7));
  EXPECT_EQ(SharedTtlPolicy::TtlOf(ttl, 0, false), ttl / 2);
}

// Fixture: a store with an engine, and a simulated fleet of one store with equally much memory.
class SharedFleetTest : public SharedStoreTest {
 protected:
  SharedFleetTest() {
    KitModel kit;
    kit.layer_types = "g";
    kit.chunk_tokens = kChunk;
    dense_ = kit.Make();
    FleetShape shape;
    shape.node_blocks = shape.shared_blocks = 1'000'000;
    fleet_ = std::make_unique<Fleet>(shape);
  }

  ~SharedFleetTest() override { EXPECT_GT(hits_, 200); }

  // Serves a prompt in the store and in the simulator: `whole` blocks that all prompts of this kind
  // share, then optionally half a block of its own. Expects equal hits and equal expiries.
  void Serve(SharedNode* node, uint32_t kind, uint32_t whole, bool has_half) {
    const uint32_t end = whole * kChunk + (has_half ? kChunk / 2 : 0);
    KitPrompt prompt{KitTokens(kind, end + 1), {}};
    TraceRequest request;
    request.at_ms = absl::ToUnixMillis(kit_.clock.Now());
    request.tokens = whole * Trace::kBlockTokens + (has_half ? 1 : 0);
    for (uint32_t i = 0; i < whole; ++i) request.blocks.push_back(kind * 100 + i);
    if (has_half) {
      prompt.cuts = {end};
      request.blocks.push_back(kind * 100 + 50 + whole);
    }
    const Fleet::Found found = fleet_->Serve(request, 0);
    const absl::StatusOr<uint32_t> restored = KitFetch(node->store.get(), dense_, prompt);
    ASSERT_TRUE(restored.ok()) << restored.status();
    ASSERT_EQ((*restored + kChunk - 1) / kChunk, found.blocks);
    hits_ += found.blocks > 0;
    node->writes->RunAll();
    if (*restored < end) {
      ASSERT_TRUE(KitPublish(node->store.get(), dense_, prompt, {end}).ok());
      node->writes->RunAll();
    }
    for (uint32_t i = 0; i < request.blocks.size(); ++i) {
      const uint32_t begin = i * kChunk, tokens = std::min(kChunk, end - begin);
      const std::string secret = ReadSecret(kit_.secret_file).value();
      const PromptChain chain =
          MakeChain(dense_.Layout().value(), RootKey(dense_.digest(), prompt.tenant, secret),
                    prompt.tokens, prompt.cuts, end, {end});
      const std::string name =
          kit_.Space(prompt.tenant)
              .PartName(chain.EndingAt(begin + tokens, kChunk)->key, LayerGroup::kGlobal, 0);
      ASSERT_EQ(kit_.memory.entries.count(name), 1);
      ASSERT_EQ(kit_.memory.entries[name].expires, fleet_->EndOf(request.blocks[i])) << i;
    }
  }

  Fingerprint dense_;
  std::unique_ptr<Fleet> fleet_;
  int hits_ = 0;
};

TEST_F(SharedFleetTest, SimulatorMatchesStoreExpiries) {
  std::mt19937_64 random(5);
  SharedNode node = kit_.Node();
  for (int round = 0; round < 400; ++round) {
    kit_.clock.Advance(absl::Milliseconds(random() % 30'000));
    Serve(&node, 1 + random() % 5, 1 + random() % kLongest, random() % 3 == 0);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace hearth
