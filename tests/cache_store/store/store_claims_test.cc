// Claims: which caller computes a prefix and which callers wait, on a store with a fake clock.
#include <gtest/gtest.h>

#include "cache_store/store/store_seams.h"
#include "tests/support/fake_clock.h"
#include "tests/support/store_kit.h"

namespace hearth {
namespace {

// Chunks of 16 tokens, window of 24: a prompt of 70 tokens has its restore point at 64.
class StoreClaimsTest : public ::testing::Test {
 protected:
  StoreClaimsTest() {
    StoreOptions options;
    options.disk_bytes = 0;
    StoreSeams seams;
    seams.clock = &clock_;
    store_ = OpenStore(options, std::move(seams)).value();
    for (const char* tenant : {"default", "other"}) store_->Observe(model_, tenant);
  }
  ClaimRequest Ask() {
    ClaimRequest ask;
    ask.min_tokens = 16;
    ask.compute_time = absl::Seconds(10);
    ask.wait_until = clock_.Now() + absl::Seconds(5);
    ask.wake = [this] { ++woken_; };
    return ask;
  }
  ClaimDecision Take(const KitPrompt& prompt, const ClaimRequest& ask) {
    return store_->Claim(KitQuery(model_, prompt), ask).value();
  }
  ClaimDecision Take(const KitPrompt& prompt) { return Take(prompt, Ask()); }
  ClaimDecision Again(const KitPrompt& prompt, ClaimDecision* waited) {
    ClaimRequest ask = Ask();
    ask.wait_until = wait_until_;
    ask.waited_for = waited->boundary;
    waited->ticket.reset();
    return Take(prompt, ask);
  }
  uint64_t Count(const char* name) { return store_->Stats().counters.at(name); }
  // Returns a prompt of `common` tokens that all prompts share, then `own` tokens that depend on
  // `seed`.
  static KitPrompt Branch(uint64_t seed, uint32_t common, uint32_t own) {
    KitPrompt prompt{KitTokens(7, common), {}};
    for (const uint32_t token : KitTokens(seed, own)) prompt.tokens.push_back(token);
    return prompt;
  }

  FakeClock clock_;
  const Fingerprint model_ = KitModel().Make();
  std::unique_ptr<TieredStore> store_;
  const KitPrompt prompt_{KitTokens(1, 70), {}};
  const absl::Time wait_until_ = clock_.Now() + absl::Seconds(5);
  int woken_ = 0;
};

TEST_F(StoreClaimsTest, OthersWaitForFirstPublisher) {
  ClaimDecision holder = Take(prompt_);
  EXPECT_EQ(holder.role, ClaimRole::kCompute);
  EXPECT_EQ(holder.boundary, 64u);
  std::vector<ClaimDecision> followers;
  for (int i = 0; i < 7; ++i) followers.push_back(Take(prompt_));
  for (const ClaimDecision& turn : followers) {
    EXPECT_EQ(turn.role, ClaimRole::kWait);
    EXPECT_EQ(turn.boundary, 64u);
    EXPECT_EQ(turn.until, wait_until_);
  }
  ASSERT_TRUE(KitPublish(store_.get(), model_, prompt_, {64}).ok());
  EXPECT_EQ(woken_, 7);
  for (ClaimDecision& turn : followers) {
    const ClaimDecision now = Again(prompt_, &turn);
    EXPECT_EQ(now.role, ClaimRole::kNone);
    EXPECT_EQ(now.usable_tokens, 64u);
  }
  holder.ticket.reset();
  EXPECT_EQ(woken_, 7);
  EXPECT_EQ(Count("leases_granted"), 1u);
  EXPECT_EQ(Count("lease_waits"), 7u);
  EXPECT_EQ(Count("lease_waits_hit"), 7u);
}

TEST_F(StoreClaimsTest, WaiterTakesOverCancelledClaim) {
  ClaimDecision holder = Take(prompt_);
  ClaimDecision first = Take(prompt_), second = Take(prompt_);
  holder.ticket.reset();
  EXPECT_EQ(woken_, 2);
  first = Again(prompt_, &first);
  second = Again(prompt_, &second);
  EXPECT_EQ(first.role, ClaimRole::kCompute);
  EXPECT_EQ(second.role, ClaimRole::kWait);
  EXPECT_EQ(Count("lease_takeovers"), 1u);
  EXPECT_EQ(Count("lease_waits"), 2u) << "a wait that goes on is counted once";
}

TEST_F(StoreClaimsTest, WaiterTakesOverExpiredClaim) {
  ClaimRequest hasty = Ask();
  hasty.compute_time = absl::Seconds(2);
  const ClaimDecision holder = Take(prompt_, hasty);
  ClaimDecision follower = Take(prompt_);
  EXPECT_EQ(follower.until, clock_.Now() + absl::Seconds(2));
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(Again(prompt_, &follower).role, ClaimRole::kCompute);
  EXPECT_EQ(Count("lease_takeovers"), 1u);
}

TEST_F(StoreClaimsTest, TimedOutWaiterComputes) {
  const ClaimDecision holder = Take(prompt_);
  ClaimDecision follower = Take(prompt_);
  clock_.Advance(absl::Seconds(5));
  const ClaimDecision now = Again(prompt_, &follower);
  EXPECT_EQ(now.role, ClaimRole::kNone) << "the holder's promise stands";
  EXPECT_EQ(now.usable_tokens, 0u);
  EXPECT_EQ(Count("lease_waits_timed_out"), 1u);
}

TEST_F(StoreClaimsTest, ZeroWaitTimeMeansNoWait) {
  ClaimRequest reader = Ask();
  reader.compute_time = absl::ZeroDuration();
  EXPECT_EQ(Take(prompt_, reader).role, ClaimRole::kNone);
  const ClaimDecision holder = Take(prompt_);
  EXPECT_EQ(holder.role, ClaimRole::kCompute);
  EXPECT_EQ(Take(prompt_, reader).role, ClaimRole::kWait) << "one that only reads waits too";
  ClaimRequest hurried = Ask();
  hurried.wait_until = clock_.Now();
  EXPECT_EQ(Take(prompt_, hurried).role, ClaimRole::kNone);
}

TEST_F(StoreClaimsTest, CallerDoesNotWaitForSmallGain) {
  ClaimRequest ask = Ask();
  ask.above_tokens = 48;
  ask.min_tokens = 17;
  EXPECT_EQ(Take(prompt_, ask).role, ClaimRole::kNone);
  const ClaimDecision holder = Take(prompt_);
  EXPECT_EQ(Take(prompt_, ask).role, ClaimRole::kNone);
  ask.min_tokens = 16;
  EXPECT_EQ(Take(prompt_, ask).role, ClaimRole::kWait);
}

TEST_F(StoreClaimsTest, TenantsHaveSeparateClaims) {
  const ClaimDecision holder = Take(prompt_);
  KitPrompt theirs = prompt_;
  theirs.tenant = "other";
  const ClaimDecision turn = Take(theirs);
  EXPECT_EQ(turn.role, ClaimRole::kCompute);
  EXPECT_EQ(turn.matched_tokens, 0u);
}

TEST_F(StoreClaimsTest, BranchingPromptsShareCommonPrefix) {
  // Prompts of 70 common tokens, then 40 tokens of their own. The first caller promises only the
  // end of its prompt. The second one notices that another caller computes the common part, and
  // promises a restore point there. All others wait for this restore point.
  const ClaimDecision first = Take(Branch(11, 70, 40));
  EXPECT_EQ(first.role, ClaimRole::kCompute);
  EXPECT_EQ(first.matched_tokens, 0u);
  const ClaimDecision second = Take(Branch(12, 70, 40));
  EXPECT_EQ(second.role, ClaimRole::kCompute);
  EXPECT_EQ(second.matched_tokens, 64u);
  for (uint64_t seed = 13; seed < 19; ++seed) {
    const ClaimDecision turn = Take(Branch(seed, 70, 40));
    EXPECT_EQ(turn.role, ClaimRole::kWait);
    EXPECT_EQ(turn.boundary, 64u);
  }
}

TEST_F(StoreClaimsTest, DeclaredBreakpointIsPromised) {
  KitPrompt mine = Branch(11, 70, 40), yours = Branch(12, 70, 40);
  mine.cuts = yours.cuts = {70};
  const ClaimDecision holder = Take(mine);
  ClaimDecision follower = Take(yours);
  EXPECT_EQ(follower.role, ClaimRole::kWait);
  EXPECT_EQ(follower.boundary, 70u);
  ASSERT_TRUE(KitPublish(store_.get(), model_, mine, {70}).ok());
  EXPECT_EQ(woken_, 1);
  follower = Again(yours, &follower);
  EXPECT_EQ(follower.usable_tokens, 70u);
  EXPECT_EQ(follower.role, ClaimRole::kCompute) << "what comes after it";
}

TEST_F(StoreClaimsTest, CancelledCallerIsNotWoken) {
  ClaimDecision holder = Take(prompt_);
  ClaimDecision follower = Take(prompt_);
  follower.ticket.reset();
  holder.ticket.reset();
  EXPECT_EQ(woken_, 0);
}

TEST_F(StoreClaimsTest, UnobservedFingerprintGetsNoClaim) {
  KitModel other;
  other.weights = "w1";
  EXPECT_EQ(store_->Claim(KitQuery(other.Make(), prompt_), Ask())->role, ClaimRole::kNone);
}

TEST_F(StoreClaimsTest, InvalidQueryIsRefused) {
  const auto turn = store_->Claim(KitQuery(model_, {{}, {}}), Ask());
  EXPECT_TRUE(absl::IsInvalidArgument(turn.status()));
}

}  // namespace
}  // namespace hearth
