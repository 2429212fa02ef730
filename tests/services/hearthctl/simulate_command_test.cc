// hearth-simulate: rows, picture, and what it says about bad input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "bench/simulate/simulate.h"
#include "tests/services/hearthctl/run_cli.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

CliResult Simulated(const std::vector<std::string>& arguments) {
  return RunCli(arguments, "", false, RunSimulator);
}

class SimulateCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream file(Path("t.jsonl"));
    for (int i = 0; i < 60; ++i) {
      file << R"({"timestamp":)" << i * 1000 << R"(,"input_length":1100,"hash_ids":[)" << i % 7
           << "," << i % 7 + 10 << "," << i + 20 << "]}\n";
    }
  }
  std::string Path(const std::string& name) const { return folder_.File(name); }
  std::string Read(const std::string& name) const { return folder_.Read(name); }

  const TestFolder folder_;
};

TEST_F(SimulateCommandTest, ARowForEachPolicyAndSize) {
  const CliResult result = Simulated({"--trace", Path("t.jsonl"), "--capacity", "0.5,0.1",
                                      "--policy", "default,lru,optimum", "--json"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  ASSERT_EQ(result.objects.size(), 6u);
  EXPECT_EQ(result.objects[0]["policy"], "default");
  EXPECT_EQ(result.objects[0]["capacity"], 0.1);
  EXPECT_EQ(result.objects[5]["policy"], "optimum");
  EXPECT_EQ(result.objects[5]["capacity"], 0.5);
  // Two of three blocks are found but for the first of each of seven prompts.
  EXPECT_NEAR(result.objects[5]["hit_rate"].get<double>(), 2.0 * 53 / 180, 1e-6);
  EXPECT_THAT(Simulated({"--trace", Path("t.jsonl")}).out,
              AllOf(HasSubstr("60 requests"), HasSubstr("optimum"), HasSubstr("hit rate")));
}

TEST_F(SimulateCommandTest, AFleetIsShownBesideOneStoreOfItsEnginesSize) {
  const CliResult fleet =
      Simulated({"--trace", Path("t.jsonl"), "--nodes", "10", "--capacity", "0.5,1", "--json"});
  EXPECT_EQ(fleet.code, kExitOk) << fleet.err;
  ASSERT_EQ(fleet.objects.size(), 2u);
  EXPECT_NEAR(fleet.objects[1]["hit_rate"].get<double>(), 2.0 * 53 / 180, 1e-6);
  EXPECT_EQ(fleet.objects[1]["hit_rate"], fleet.objects[1]["lru_hit_rate"]);
  EXPECT_EQ(fleet.objects[1]["shared_hit_rate"], fleet.objects[1]["hit_rate"]);
  EXPECT_THAT(Simulated({"--trace", Path("t.jsonl"), "--nodes", "2", "--model", "270m",
                         "--shared-bytes", "1000000000", "--node-share", "0.1"})
                  .out,
              AllOf(HasSubstr("2 stores, random routing"), HasSubstr("one lru store")));
}

TEST_F(SimulateCommandTest, AWrongFleetIsRefusedByItsFlag) {
  const auto refused = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"--trace", Path("t.jsonl")};
    args.insert(args.end(), more.begin(), more.end());
    const CliResult result = Simulated(args);
    EXPECT_EQ(result.code, kExitUsage);
    return result.err;
  };
  EXPECT_THAT(refused({"--nodes", "3", "--routing", "near"}), HasSubstr("random, affinity"));
  EXPECT_THAT(refused({"--nodes", "100000"}), HasSubstr("from 1 to 1000"));
  EXPECT_THAT(refused({"--nodes", "3", "--shared-bytes", "100"}), HasSubstr("--model"));
  EXPECT_THAT(refused({"--nodes", "3", "--node-share", "2"}), HasSubstr("--node-share 2"));
  EXPECT_THAT(refused({"--node-share", "0.5"}), HasSubstr("--nodes 0"));
}

TEST_F(SimulateCommandTest, WithAModelRestorePointsAreCounted) {
  const CliResult result = Simulated({"--trace", Path("t.jsonl"), "--capacity", "1", "--policy",
                                      "default", "--model", "4b", "--json"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_EQ(result.last()["model"], "4b");
  EXPECT_NEAR(result.last()["hit_rate"].get<double>(), 1024.0 * 53 / (1100 * 60), 1e-6);
}

TEST_F(SimulateCommandTest, DrawsAPictureThatNeedsNothingElse) {
  const CliResult result = Simulated({"--trace", Path("t.jsonl"), "--svg", Path("rates.svg")});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  const std::string svg = Read("rates.svg");
  EXPECT_THAT(svg, AllOf(HasSubstr("<svg"), HasSubstr("Hearth"), HasSubstr("LRU"),
                         HasSubstr("offline optimum"), HasSubstr("t.jsonl: 60 requests")));
  EXPECT_THAT(svg, AllOf(Not(HasSubstr("href")), Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
  // Whatever was asked for is seen beside the usual and the best.
  const CliResult one = Simulated({"--trace", Path("t.jsonl"), "--policy", "default", "--capacity",
                                   "0.1", "--svg", Path("one.svg"), "--json"});
  EXPECT_EQ(one.objects.size(), 1u) << one.out;
  EXPECT_THAT(Read("one.svg"), AllOf(HasSubstr("LRU"), HasSubstr("offline optimum")));
  const CliResult failed = Simulated({"--trace", Path("t.jsonl"), "--svg", Path("none/rates.svg")});
  EXPECT_EQ(failed.code, kExitFailed);
  EXPECT_THAT(failed.err, HasSubstr("none/rates.svg: cannot be written"));
}

TEST_F(SimulateCommandTest, OnePointOfAnOddlyNamedTraceIsDrawn) {
  std::filesystem::rename(Path("t.jsonl"), Path("a <b> & c"));
  const CliResult one =
      Simulated({"--trace", Path("a <b> & c"), "--capacity", "0.1", "--svg", Path("one.svg")});
  EXPECT_EQ(one.code, kExitOk) << one.err;
  EXPECT_THAT(Read("one.svg"), AllOf(HasSubstr("a &lt;b&gt; &amp; c"), Not(HasSubstr("nan"))));
}

TEST_F(SimulateCommandTest, BadInputIsNamed) {
  const CliResult nothing = Simulated({"--trace", Path("none.jsonl")});
  EXPECT_EQ(nothing.code, kExitFailed);
  EXPECT_THAT(nothing.err, HasSubstr("none.jsonl: cannot be opened: No such file"));
  std::ofstream(Path("bad.jsonl")) << R"({"timestamp": 1})"
                                   << "\n";
  const CliResult bad = Simulated({"--trace", Path("bad.jsonl")});
  EXPECT_EQ(bad.code, kExitUsage);
  EXPECT_THAT(bad.err, HasSubstr("bad.jsonl:1: has no field input_length"));
  std::ofstream(Path("torn.xz")) << "\xFD"
                                    "7zXZ";
  EXPECT_THAT(Simulated({"--trace", Path("torn.xz")}).err,
              HasSubstr("torn.xz: is not a whole xz file"));
  const std::string trace = Path("t.jsonl");
  EXPECT_EQ(Simulated({}).code, kExitUsage);
  EXPECT_EQ(Simulated({"--trace", trace, "--capacity", "0"}).code, kExitUsage);
  EXPECT_EQ(Simulated({"--trace", trace, "--capacity", "x"}).code, kExitUsage);
  EXPECT_THAT(Simulated({"--trace", trace, "--policy", "mru"}).err,
              HasSubstr("--policy mru is not one of default, lru, optimum"));
  EXPECT_THAT(Simulated({"--trace", trace, "--model", "7b"}).err,
              HasSubstr("--model 7b is not one of"));
}

}  // namespace
}  // namespace hearth
