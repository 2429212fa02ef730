// HttpBudget: which account is evicted. BodyBytes: a body allocates exactly the memory that is
// counted.
#include "services/serving/http/http_budget.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <memory>
#include <string>
#include <vector>

#include "services/serving/http/body_bytes.h"

namespace hearth {
namespace {

TEST(HttpBudget, LargestAccountIsEvicted) {
  const auto budget = std::make_shared<HttpBudget>(100);
  int large_evicted = 0, small_evicted = 0;
  const auto large =
      std::make_shared<HttpBudget::Account>(budget, "large", [&] { ++large_evicted; });
  const auto small =
      std::make_shared<HttpBudget::Account>(budget, "small", [&] { ++small_evicted; });
  const auto newcomer = std::make_shared<HttpBudget::Account>(budget, "newcomer", nullptr);
  ASSERT_TRUE(large->Grow(60));
  ASSERT_TRUE(small->Grow(30));
  EXPECT_TRUE(newcomer->Grow(20));
  EXPECT_EQ(large_evicted, 1);
  EXPECT_EQ(small_evicted, 0);
  EXPECT_EQ(budget->held_bytes(), 50u);
  EXPECT_FALSE(large->Grow(1));
  large->Shrink(60);
  EXPECT_EQ(budget->held_bytes(), 50u);
}

TEST(HttpBudget, CallerWithMostBytesIsRefused) {
  const auto budget = std::make_shared<HttpBudget>(100);
  const auto other = std::make_shared<HttpBudget::Account>(budget, "other", [] { FAIL(); });
  auto caller = std::make_shared<HttpBudget::Account>(budget, "caller", nullptr);
  ASSERT_TRUE(other->Grow(45));
  ASSERT_TRUE(caller->Grow(40));
  EXPECT_FALSE(caller->Grow(20));
  EXPECT_EQ(budget->held_bytes(), 85u);
  EXPECT_TRUE(caller->Grow(15));
  caller->Shrink(5);
  EXPECT_EQ(budget->held_bytes(), 95u);
  caller = nullptr;
  EXPECT_EQ(budget->held_bytes(), 45u);
  EXPECT_FALSE(other->Grow(56));
}

TEST(HttpBudget, ManySmallAccountsAreEvicted) {
  const auto budget = std::make_shared<HttpBudget>(100);
  int evicted = 0;
  std::vector<std::shared_ptr<HttpBudget::Account>> attackers;
  for (int i = 0; i < 8; ++i) {
    attackers.push_back(
        std::make_shared<HttpBudget::Account>(budget, "attacker", [&] { ++evicted; }));
    ASSERT_TRUE(attackers.back()->Grow(8));
  }
  const auto honest = std::make_shared<HttpBudget::Account>(budget, "honest", [] { FAIL(); });
  ASSERT_TRUE(honest->Grow(36));
  const auto next = std::make_shared<HttpBudget::Account>(budget, "attacker", nullptr);
  EXPECT_TRUE(next->Grow(4));
  EXPECT_EQ(evicted, 1);
  EXPECT_FALSE(next->Grow(8)) << "it is the largest of the caller with the most bytes";
  EXPECT_TRUE(honest->Grow(10));
  EXPECT_EQ(evicted, 2);
  attackers.clear();
  EXPECT_EQ(budget->held_bytes(), 50u);
}

TEST(HttpBudget, SmallStreamIsEvictedLast) {
  const auto budget = std::make_shared<HttpBudget>(160);
  int evicted = 0;
  const auto stream = std::make_shared<HttpBudget::Account>(budget, "caller", [] { FAIL(); });
  const auto large = std::make_shared<HttpBudget::Account>(budget, "caller", [&] { ++evicted; });
  const auto small = std::make_shared<HttpBudget::Account>(budget, "caller", [&] { ++evicted; });
  stream->SetStreaming(true);
  large->SetStreaming(true);
  ASSERT_TRUE(stream->Grow(9));
  ASSERT_TRUE(large->Grow(143));
  ASSERT_TRUE(small->Grow(8));
  EXPECT_TRUE(stream->Grow(1)) << "the large stream goes";
  EXPECT_EQ(evicted, 1);
  const auto other = std::make_shared<HttpBudget::Account>(budget, "other", nullptr);
  ASSERT_TRUE(other->Grow(10));
  ASSERT_TRUE(small->Grow(1));
  const auto another = std::make_shared<HttpBudget::Account>(budget, "caller", nullptr);
  EXPECT_FALSE(another->Grow(140));
  EXPECT_TRUE(another->Grow(120));
  EXPECT_EQ(evicted, 1);
  EXPECT_EQ(budget->held_bytes(), 149u);
}

TEST(HttpBudget, PeakIsResetWhenRead) {
  const auto budget = std::make_shared<HttpBudget>(100);
  const auto one = std::make_shared<HttpBudget::Account>(budget, "one", nullptr);
  ASSERT_TRUE(one->Grow(60));
  one->Shrink(50);
  ASSERT_TRUE(one->Grow(5));
  EXPECT_EQ(budget->TakePeakBytes(), 60u);
  one->Shrink(5);
  EXPECT_EQ(budget->TakePeakBytes(), 15u);
  EXPECT_EQ(budget->TakePeakBytes(), 10u);
}

TEST(BodyBytes, AllocationMatchesCountedCapacity) {
  constexpr size_t kOfMalloc = 32;  // extra bytes of malloc: the final zero, and rounding
  for (const size_t first : {1, 100, 33000, 40000, 65535}) {
    BodyBytes body;
    size_t counted = 0;
    for (size_t bytes = first; bytes <= BodyBytes::kBlockBytes; bytes += 1 + bytes / 16) {
      if (bytes > counted) counted = BodyBytes::CapacityFor(bytes, 2 * counted);
      body.Reserve(counted);
      body.Append(std::string(bytes - body.size(), 'x'));
      if (bytes < sizeof(std::string)) continue;  // the string may store so few bytes inside itself
      EXPECT_LE(malloc_usable_size(const_cast<char*>(body.view().data())), counted + kOfMalloc)
          << bytes << " after " << first;
    }
  }
}

}  // namespace
}  // namespace hearth
