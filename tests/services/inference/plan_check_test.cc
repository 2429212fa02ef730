#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/match.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/rpc/proto_conversion.h"
#include "tests/services/store/small_layout.h"

namespace hearth {
namespace {

class PlanCheckTest : public testing::Test {
 protected:
  PlanCheckTest() {
    prefix_.token_ids = CountingTokens(40);
    prefix_.cuts = {20, 32};
    plan_.set_usable_tokens(32);
    v1::InferenceState* state = plan_.mutable_state();
    state->set_token_count(32);
    state->set_next_position(32);
    state->set_attention_mask("causal");
    state->mutable_token_ids()->Add(prefix_.token_ids.begin(), prefix_.token_ids.begin() + 32);
    state->add_cuts(20);
    DigestToProto(fingerprint_.digest(), state->mutable_fingerprint());
  }
  absl::Status Check(uint32_t above = 0, uint32_t max = 39) {
    return CheckPlan({&prefix_, above, max, &fingerprint_, &layout_}, plan_);
  }

  const Fingerprint fingerprint_ = SmallFingerprint();
  const KvLayout layout_ = SmallLayout();
  PrefixRequest prefix_;
  v1::FetchPlan plan_;
};

TEST_F(PlanCheckTest, MatchingPlanIsAccepted) { EXPECT_TRUE(Check().ok()) << Check(); }

TEST_F(PlanCheckTest, PrefillCutsAtSegmentEndsMayDiffer) {
  plan_.mutable_state()->add_cuts(32);
  prefix_.cuts = {16, 20};
  EXPECT_TRUE(Check().ok()) << Check();
}

TEST_F(PlanCheckTest, UnrequestedBoundaryIsRefused) {
  EXPECT_TRUE(absl::StrContains(Check(32).message(), "usable_tokens is 32"));
  EXPECT_TRUE(absl::StrContains(Check(0, 31).message(), "usable_tokens is 32"));
  prefix_.token_ids.resize(32);
  EXPECT_FALSE(Check(0, 0).ok()) << "one token is left to compute";
}

TEST_F(PlanCheckTest, PlanMismatchNamesFieldAndValues) {
  struct Case {
    const char* expected;
    std::function<void(v1::InferenceState*)> change;
  };
  const Case cases[] = {
      {"token_count is 31; the request has 32", [](auto* state) { state->set_token_count(31); }},
      {"next_position is 33; the request has 32",
       [](auto* state) { state->set_next_position(33); }},
      {"attention_mask is full; the request has causal",
       [](auto* state) { state->set_attention_mask("full"); }},
      {"token_ids[3] is 9; the request has 8", [](auto* state) { state->set_token_ids(3, 9); }},
      {"number of token_ids is 33", [](auto* state) { state->add_token_ids(1); }},
      {"cuts inside the segment at 16 is {}; the request has {4}",
       [](auto* state) { state->clear_cuts(); }},
      {"fingerprint is ",
       [](auto* state) {
         DigestToProto(SmallFingerprint("b").digest(), state->mutable_fingerprint());
       }},
      {"fingerprint is no digest", [](auto* state) { state->clear_fingerprint(); }},
  };
  const v1::FetchPlan good = plan_;
  for (const Case& c : cases) {
    plan_ = good;
    c.change(plan_.mutable_state());
    const absl::Status status = Check();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << c.expected;
    EXPECT_TRUE(absl::StrContains(status.message(), c.expected)) << status;
  }
}

TEST(ReadAck, PublishedTokensIsHighestBoundary) {
  v1::PublishAck ack;
  ack.add_boundaries(16);
  ack.add_boundaries(48);
  ack.add_boundaries(32);
  ack.set_durable(v1::DURABILITY_SYNC);
  ack.add_notes("a");
  ack.add_notes("b");
  PublishOutcome outcome;
  ReadAck(ack, &outcome);
  EXPECT_EQ(outcome.published_tokens, 48u);
  EXPECT_EQ(outcome.boundaries, (std::vector<uint32_t>{16, 48, 32}));
  EXPECT_EQ(outcome.durable, Durability::kSync);
  EXPECT_EQ(outcome.note, "a; b");
}

}  // namespace
}  // namespace hearth
