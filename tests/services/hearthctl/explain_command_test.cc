#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/services/hearthctl/fake_worker.h"
#include "tests/services/hearthctl/run_cli.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ExplainCommandTest : public ::testing::Test {
 protected:
  v1::BoundaryInfo* Add(uint32_t boundary, const std::string& code, const std::string& reason) {
    v1::BoundaryInfo* info = worker_.explained.add_boundaries();
    info->set_boundary(boundary);
    info->set_usable(code.empty());
    info->set_reason_code(code);
    info->set_reason(reason);
    return info;
  }
  std::string Explain() {
    return RunCli({"explain", "--worker", worker_.address(), "--prompt", "a"}).out;
  }

  FakeWorker worker_;
};

TEST_F(ExplainCommandTest, NeighboursWithOneReasonAreOneRowAndAHitIsNotBuried) {
  worker_.explained.set_summary("hit: 1280 of 1323 tokens can be restored");
  for (uint32_t boundary = 128; boundary <= 1152; boundary += 128) {
    Add(boundary, "tail_gone", "tail gone: the local layers' last 511 tokens are not stored here");
  }
  Add(1280, "", "");
  const std::string out = Explain();
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 4) << out;
  EXPECT_THAT(out, HasSubstr("128..1152  no"));
  EXPECT_THAT(out, HasSubstr("not kept: nobody asked for this boundary (9 boundaries)"));
  EXPECT_THAT(out, HasSubstr("1280  yes"));
  EXPECT_THAT(out, Not(HasSubstr("tail gone")));
}

TEST_F(ExplainCommandTest, EvictionsAndOtherReasonsHaveRowsOfTheirOwn) {
  worker_.explained.set_summary("miss");
  Add(128, "never_stored", "never stored");
  Add(256, "never_stored", "never stored");
  Add(384, "tail_gone", "tail gone: evicted 12s ago")->set_removed_by("host_full");
  Add(512, "", "")->set_bytes(1000);
  Add(640, "", "")->set_bytes(1000);
  const std::string out = Explain();
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 6) << out;
  EXPECT_THAT(out, HasSubstr("128..256  no"));
  EXPECT_THAT(out, HasSubstr("tail gone: evicted 12s ago\n"));
  EXPECT_THAT(out, Not(HasSubstr("512..640"))) << "what can be used is told one by one";
}

TEST_F(ExplainCommandTest, TheFirstTokenAloneIsNoMatch) {
  worker_.explained.set_summary("miss: 1 tokens match, but no restore point in them is complete");
  worker_.explained.set_matched_tokens(1);
  v1::FingerprintDifference* other = worker_.explained.add_other_fingerprints();
  other->set_field("dtype");
  other->set_matched_tokens(1);
  EXPECT_EQ(Explain(), "miss: nothing that is stored begins like this prompt\n");
  worker_.explained.set_matched_tokens(2);
  other->set_matched_tokens(2);
  EXPECT_THAT(Explain(), HasSubstr("no restore point in them is complete"));
  EXPECT_THAT(Explain(), HasSubstr("2 tokens are stored with another dtype"));
}

TEST_F(ExplainCommandTest, ShowsEachBoundaryWithItsReason) {
  const std::string prompt(40, 'a');
  const CliResult missing =
      RunCli({"explain", "--worker", worker_.address(), "--prompt", prompt, "--json"});
  ASSERT_EQ(missing.last()["boundaries"].size(), 2u);
  EXPECT_EQ(missing.last()["boundaries"].at(0)["reason"], "never stored");
  EXPECT_EQ(missing.last()["omitted_boundaries"], 7);
  const CliResult human = RunCli({"explain", "--worker", worker_.address(), "--prompt", prompt});
  EXPECT_THAT(human.out, AllOf(HasSubstr("nothing"), HasSubstr("never stored"),
                               HasSubstr("  7 more, never stored\n")));
}

}  // namespace
}  // namespace hearth
