// Promises to compute, between stores that share an engine: each prefix is computed by one of them.
#include <gtest/gtest.h>

#include "tests/cache_store/shared/shared_kit.h"

namespace hearth {
namespace {

class SharedClaimsTest : public SharedStoreTest {
 protected:
  ClaimDecision Claim(SharedNode* node, const KitPrompt& prompt, uint32_t waited_for = 0) {
    node->store->Observe(model_, prompt.tenant);
    ClaimRequest ask;
    ask.min_tokens = 16;
    ask.compute_time = absl::Seconds(30);
    ask.wait_until = wait_until_;
    ask.waited_for = waited_for;
    return node->store->Claim(KitQuery(model_, prompt), ask).value();
  }

  absl::Time wait_until_ = kit_.clock.Now() + absl::Seconds(10);
};

TEST_F(SharedClaimsTest, OneStoreComputesAndTheOtherIsServed) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  ClaimDecision computing = Claim(&one, Prompt(1));
  EXPECT_EQ(computing.role, ClaimRole::kCompute);
  ClaimDecision waiting = Claim(&other, Prompt(1));
  ASSERT_EQ(waiting.role, ClaimRole::kWait);
  EXPECT_EQ(waiting.boundary, 64);
  EXPECT_EQ(waiting.until, kit_.clock.Now() + SharedClaims::kPause);
  EXPECT_EQ(other.Of(Counter::kSharedLeaseWaits), 1);
  // The claim goes behind what was published under it.
  ASSERT_TRUE(KitPublish(one.store.get(), model_, Prompt(1), {64}).ok());
  computing.ticket.reset();
  waiting.ticket.reset();
  waiting = Claim(&other, Prompt(1), 64);
  EXPECT_EQ(waiting.role, ClaimRole::kWait);
  one.writes->RunAll();
  waiting.ticket.reset();
  const ClaimDecision served = Claim(&other, Prompt(1), 64);
  EXPECT_EQ(served.role, ClaimRole::kNone);
  EXPECT_EQ(served.usable_tokens, 64);
  EXPECT_EQ(other.Of(Counter::kSharedLeaseWaits), 1);
  EXPECT_EQ(kit_.memory.Count(":w"), 0);
}

TEST_F(SharedClaimsTest, PromptsThatBranchWaitForWhatTheyHaveInCommon) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  KitPrompt first = Prompt(1, 40), second = Prompt(1, 40);
  first.cuts = second.cuts = {32};
  for (uint32_t token = 0; token < 60; ++token) {
    first.tokens.push_back(token);
    second.tokens.push_back(100 + token);
  }
  const ClaimDecision computing = Claim(&one, first);
  EXPECT_EQ(computing.role, ClaimRole::kCompute);
  EXPECT_EQ(computing.boundary, 96);
  const ClaimDecision waiting = Claim(&other, second);
  EXPECT_EQ(waiting.role, ClaimRole::kWait);
  EXPECT_EQ(waiting.boundary, 32);
}

TEST_F(SharedClaimsTest, AHolderThatGivesUpOrDiesIsTakenOverFrom) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  ClaimDecision computing = Claim(&one, Prompt(1));
  EXPECT_EQ(Claim(&other, Prompt(1)).role, ClaimRole::kWait);
  computing.ticket.reset();
  one.writes->RunAll();
  EXPECT_EQ(Claim(&other, Prompt(1), 64).role, ClaimRole::kCompute);
  other.writes->RunAll();
  {
    SharedNode dies = kit_.Node();
    computing = Claim(&dies, Prompt(2));
    EXPECT_EQ(computing.role, ClaimRole::kCompute);
    computing.ticket.reset();  // and what it was to erase is never erased
  }
  EXPECT_EQ(Claim(&other, Prompt(2)).role, ClaimRole::kWait);
  kit_.clock.Advance(absl::Seconds(31));
  EXPECT_EQ(Claim(&other, Prompt(2), 64).role, ClaimRole::kCompute);
}

// A store knows its own: they go behind what is written, which may take long.
TEST_F(SharedClaimsTest, AStoreDoesNotWaitForAClaimThatItGaveBackItself) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  ClaimDecision computing = Claim(&one, Prompt(1));
  ASSERT_EQ(computing.role, ClaimRole::kCompute);
  computing.ticket.reset();  // and nothing is written yet
  ClaimDecision again = Claim(&one, Prompt(1));
  EXPECT_EQ(again.role, ClaimRole::kCompute);
  EXPECT_EQ(one.Of(Counter::kSharedLeaseWaits), 0);
  // The claim given back does not take the new one with it, which ends later.
  one.writes->RunAll();
  EXPECT_EQ(Claim(&other, Prompt(1)).role, ClaimRole::kWait);
  other.writes->RunAll();
  again.ticket.reset();
  one.writes->RunAll();
  EXPECT_EQ(kit_.memory.Count(":w"), 0);
  EXPECT_EQ(Claim(&other, Prompt(1), 64).role, ClaimRole::kCompute);
}

TEST_F(SharedClaimsTest, AClaimThatFoundNoPlaceToBeErasedIsTheStoresOwnUntilItEnds) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  ClaimDecision computing = Claim(&one, Prompt(1));
  kit_.clock.Advance(absl::Seconds(20));
  one.writes->SetFull(true);
  computing.ticket.reset();
  computing = Claim(&one, Prompt(1), 64);
  EXPECT_EQ(computing.role, ClaimRole::kCompute);
  // Taken anew, so it lasts as long as that asks for.
  kit_.clock.Advance(absl::Seconds(5));
  EXPECT_EQ(Claim(&other, Prompt(2)).role, ClaimRole::kCompute);
  kit_.clock.Advance(absl::Seconds(6));
  other.writes->RunAll();
  wait_until_ = kit_.clock.Now() + absl::Seconds(10);
  EXPECT_EQ(Claim(&other, Prompt(1)).role, ClaimRole::kWait);
  computing.ticket.reset();
  kit_.clock.Advance(absl::Seconds(31));
  // What ended is somebody else's then.
  const ClaimDecision theirs = Claim(&other, Prompt(1), 64);
  EXPECT_EQ(theirs.role, ClaimRole::kCompute);
  wait_until_ = kit_.clock.Now() + absl::Seconds(10);
  EXPECT_EQ(Claim(&one, Prompt(1)).role, ClaimRole::kWait);
}

TEST_F(SharedClaimsTest, ClaimWaitEndsInTimeAndIgnoresUnsealedValues) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  const ClaimDecision computing = Claim(&one, Prompt(1));
  kit_.clock.Advance(absl::Seconds(11));
  EXPECT_EQ(Claim(&other, Prompt(1), 64).role, ClaimRole::kCompute);
  kit_.clock.Advance(-absl::Seconds(11));
  EXPECT_EQ(Claim(&other, Prompt(1)).role, ClaimRole::kWait);
  for (const std::string& name : kit_.memory.Names()) {
    if (absl::EndsWith(name, ":w")) kit_.memory.entries[name].value.back() ^= 1;
  }
  EXPECT_EQ(Claim(&other, Prompt(1)).role, ClaimRole::kCompute);
  EXPECT_EQ(other.Of(Counter::kSharedRejectedValues), 1);
}

TEST_F(SharedClaimsTest, WithoutTheEngineEachComputes) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  const ClaimDecision computing = Claim(&one, Prompt(1));
  other.engine->SetUnreachable(true);
  EXPECT_EQ(Claim(&other, Prompt(1)).role, ClaimRole::kCompute);
  other.engine->SetUnreachable(false);
  other.engine->SetDelay(absl::InfiniteDuration());
  const absl::Time before = kit_.clock.Now();
  EXPECT_EQ(Claim(&other, Prompt(2)).role, ClaimRole::kCompute);
  EXPECT_EQ(kit_.clock.Now() - before,
            SharedLookup::kHearPatience + kit_.shared_options.fetch_budget);
}

}  // namespace
}  // namespace hearth
