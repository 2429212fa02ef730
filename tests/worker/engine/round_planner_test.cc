#include "worker/engine/round_planner.h"

#include <gtest/gtest.h>

#include <string>

namespace hearth {
namespace {

EngineRequest RequestOf(const std::string& tenant) {
  EngineRequest request;
  request.token_ids = {1, 2, 3};
  request.tenant = tenant;
  return request;
}

// The engine allocates memory before it calls Admit, without the planner's lock. During this time
// another request may drop the sequence.
TEST(RoundPlannerTest, DroppedRequestIsNotAdmitted) {
  EngineOptions options;
  options.max_running = 2;
  options.max_queued = 0;
  const KvLayout layout;
  EngineCounters counters;
  RoundPlanner planner(options, layout, /*model=*/nullptr, &counters);
  const auto first = planner.Accept(RequestOf("many"), {});
  const auto newest = planner.Accept(RequestOf("many"), {});
  ASSERT_TRUE(first.ok() && newest.ok());
  const auto other = planner.Accept(RequestOf("few"), {});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE(planner.Admit((*newest)->id)) << "the next round ends the dropped request";
  EXPECT_TRUE(planner.Admit((*first)->id));
  EXPECT_TRUE(planner.Admit((*other)->id));
}

}  // namespace
}  // namespace hearth
