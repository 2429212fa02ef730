// HttpBudget: which account gives way.
#include "services/serving/http/http_budget.h"

#include <gtest/gtest.h>

#include <memory>

namespace hearth {
namespace {

TEST(HttpBudget, LargestAccountGivesWay) {
  const auto budget = std::make_shared<HttpBudget>(100);
  int large_evicted = 0, small_evicted = 0;
  const auto large = HttpBudget::Open(budget, "large", [&] { ++large_evicted; });
  const auto small = HttpBudget::Open(budget, "small", [&] { ++small_evicted; });
  const auto newcomer = HttpBudget::Open(budget, "newcomer", nullptr);
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

TEST(HttpBudget, LargestCallerIsRefused) {
  const auto budget = std::make_shared<HttpBudget>(100);
  const auto other = HttpBudget::Open(budget, "other", [] { FAIL(); });
  auto caller = HttpBudget::Open(budget, "caller", nullptr);
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

}  // namespace
}  // namespace hearth
