// ls --sort, --limit, --filter.
#include "services/hearthctl/point_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "services/cli/command_line.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PointChoiceTest : public ::testing::Test {
 protected:
  PointChoiceTest() {
    Add(1, 100, 30, v1::TIER_HOST, 5);
    Add(2, 300, 10, v1::TIER_DISK, 7)->set_pinned(true);
    Add(3, 200, 20, v1::TIER_DISK, 0)->set_expires_in_s(60);
  }
  v1::RestorePointInfo* Add(uint32_t number, uint32_t tokens, double age_s, v1::Tier tier,
                            uint64_t hits) {
    v1::RestorePointInfo& point = points_.emplace_back();
    point.set_restore_point_id(std::string(32, static_cast<char>(number)));
    point.set_tokens(tokens);
    point.set_bytes(uint64_t{tokens} << 10);
    point.set_age_s(age_s);
    point.set_tier(tier);
    point.set_hits(hits);
    return &point;
  }
  // The first bytes of the chosen ones' ids.
  std::vector<int> Chosen(std::vector<std::string> words) {
    CommandLine line({"tool", "", "", "1"});
    CommandFlags* ls = line.AddCommand("ls", "", "");
    PointChoice choice;
    choice.Declare(ls);
    words.insert(words.begin(), "ls");
    std::istringstream in;
    std::ostringstream out, err;
    Console console{in, out, err};
    ended_ = line.Parse(words, console);
    err_ = err.str();
    if (ended_) return {};
    std::vector<v1::RestorePointInfo> points = points_;
    beyond_ = choice.Apply(&points);
    std::vector<int> numbers;
    for (const auto& point : points) numbers.push_back(point.restore_point_id()[0]);
    return numbers;
  }

  std::vector<v1::RestorePointInfo> points_;
  std::optional<int> ended_;
  std::string err_;
  size_t beyond_ = 0;
};

TEST_F(PointChoiceTest, TheLastUsedComeFirstUnlessSortedOtherwise) {
  EXPECT_THAT(Chosen({}), ElementsAre(2, 3, 1));
  EXPECT_THAT(Chosen({"--sort", "tokens"}), ElementsAre(2, 3, 1));
  EXPECT_THAT(Chosen({"--sort", "bytes"}), ElementsAre(2, 3, 1));
  EXPECT_THAT(Chosen({"--sort", "hits"}), ElementsAre(2, 1, 3));
  EXPECT_THAT(Chosen({"--sort", "left"}), ElementsAre(3, 1, 2)) << "those without an end last";
  EXPECT_THAT(Chosen({"--sort", "size"}), IsEmpty());
  EXPECT_EQ(ended_, kExitUsage);
  EXPECT_THAT(err_, HasSubstr("\"size\" is not one of tokens, bytes"));
}

TEST_F(PointChoiceTest, ALimitKeepsTheFirstAndCountsTheRest) {
  EXPECT_THAT(Chosen({"--limit", "2"}), ElementsAre(2, 3));
  EXPECT_EQ(beyond_, 1u);
  EXPECT_THAT(Chosen({"--limit", "3"}), ElementsAre(2, 3, 1));
  EXPECT_EQ(beyond_, 0u);
}

TEST_F(PointChoiceTest, FiltersAllHold) {
  EXPECT_THAT(Chosen({"--filter", "tokens>100"}), ElementsAre(2, 3));
  EXPECT_THAT(Chosen({"--filter", "tokens>=100", "--filter", "tier=disk"}), ElementsAre(2, 3));
  EXPECT_THAT(Chosen({"--filter", "bytes<=200KiB"}), ElementsAre(3, 1));
  EXPECT_THAT(Chosen({"--filter", "age<25s", "--filter", "pinned=no"}), ElementsAre(3));
  EXPECT_THAT(Chosen({"--filter", "left<2m"}), ElementsAre(3));
  EXPECT_THAT(Chosen({"--filter", "hits=0"}), ElementsAre(3));
  EXPECT_THAT(Chosen({"--filter", "id=0202"}), ElementsAre(2));
  EXPECT_THAT(Chosen({"--filter", "durable=yes"}), IsEmpty());
}

TEST_F(PointChoiceTest, AWrongFilterIsRefusedWithTheValidOnes) {
  for (const char* wrong : {"tokens", "tokens>", "tokens>x", "tokens<>3", "tier>disk", "colour=red",
                            "pinned=maybe", "age<soon", "=", ""}) {
    Chosen({"--filter", wrong});
    EXPECT_EQ(ended_, kExitUsage) << wrong;
    EXPECT_THAT(err_, HasSubstr("--filter")) << wrong;
  }
}

}  // namespace
}  // namespace hearth
