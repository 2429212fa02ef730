// Calls that are cancelled while keys are computed: the work stops and changes nothing.
#include <gtest/gtest.h>

#include "cache_store/store/tiered_store.h"
#include "tests/support/store_kit.h"

namespace hearth {
namespace {

// Returns a long prompt: while its keys are computed, `stopped` is called.
KitPrompt LongPrompt() {
  KitPrompt prompt{KitTokens(1, 400000), {}};
  for (uint32_t cut = 3; cut < prompt.tokens.size() && prompt.cuts.size() < 60000; cut += 6) {
    prompt.cuts.push_back(cut);
  }
  return prompt;
}

class CancelledCalls : public ::testing::Test {
 protected:
  CancelledCalls() {
    StoreOptions options;
    options.host_bytes = 1 << 20;
    options.disk_bytes = 0;
    store_ = TieredStore::Open(options).value();
    store_->Observe(model_, "default");
  }
  // Returns a function for `stopped` that returns true from its call number `number` on.
  std::function<bool()> StopAt(int number) {
    asked_ = 0;
    return [this, number] { return ++asked_ >= number; };
  }

  const Fingerprint model_ = KitModel().Make();
  const KitPrompt prompt_ = LongPrompt();
  std::unique_ptr<TieredStore> store_;
  int asked_ = 0;
};

TEST_F(CancelledCalls, LookupStopsWhenCancelled) {
  PrefixQuery query = KitQuery(model_, prompt_);
  query.stopped = StopAt(2);
  EXPECT_EQ(store_->Fetch(query, 0, 0).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(asked_, 2);
  query.stopped = StopAt(2);
  EXPECT_EQ(store_->Claim(query, {}).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(asked_, 2);
  query.stopped = StopAt(2);
  EXPECT_EQ(store_->Explain(query).status().code(), absl::StatusCode::kCancelled);
}

TEST_F(CancelledCalls, LookupThatIsNotCancelledAnswers) {
  PrefixQuery query = KitQuery(model_, prompt_);
  query.stopped = [this] { return ++asked_ < 0; };
  const auto session = store_->Fetch(query, 0, 0);
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ((*session)->plan().miss_reason, "the tenant stored nothing under this fingerprint");
  EXPECT_GT(asked_, 1);
}

TEST_F(CancelledCalls, CancelledPublishLeavesNothing) {
  // An invalid announcement suffices, because keys are computed first; computing all keys of this
  // prompt would take minutes.
  PublishSpec spec = KitSpec(model_, KitPrompt{KitTokens(1, 33), {}}, {32});
  spec.token_ids = prompt_.tokens;
  spec.cuts = prompt_.cuts;
  spec.boundaries = {131072};
  spec.stopped = StopAt(1);
  EXPECT_EQ(store_->Publish(spec).status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(store_->List("default").empty());
}

}  // namespace
}  // namespace hearth
