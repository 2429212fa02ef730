#include "services/cli/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A program "tool" with the commands "paint" and "wash", of which paint's flags are under test.
class CommandLineTest : public ::testing::Test {
 protected:
  std::optional<int> Parse(const std::vector<std::string>& words) {
    std::istringstream in;
    std::ostringstream out, err;
    Console console{in, out, err};
    const std::optional<int> ended = line_.Parse(words, console);
    out_ = out.str();
    err_ = err.str();
    return ended;
  }

  CommandLine line_{{"tool", "What it is for.", "The end.", "1.2.3"}};
  CommandFlags* const paint_ = line_.AddCommand("paint", "Put colour on it", "Paint's end.");
  CommandFlags* const wash_ = line_.AddCommand("wash", "Take dirt off it", "Wash's end.");
  std::string out_, err_;
};

TEST_F(CommandLineTest, TheCommandThatWasGivenIsTheChosenOne) {
  EXPECT_EQ(Parse({"wash"}), std::nullopt);
  EXPECT_TRUE(wash_->chosen());
  EXPECT_FALSE(paint_->chosen());
  EXPECT_THAT(line_.names(), ElementsAre("paint", "wash"));
}

TEST_F(CommandLineTest, HelpAndVersionEndWithZero) {
  EXPECT_EQ(Parse({"--help"}), kExitOk);
  EXPECT_THAT(out_, AllOf(HasSubstr("What it is for."), HasSubstr("Put colour on it"),
                          HasSubstr("The end.")));
  EXPECT_EQ(Parse({"paint", "--help"}), kExitOk);
  EXPECT_THAT(out_, HasSubstr("Paint's end."));
  EXPECT_EQ(Parse({"--version"}), kExitOk);
  EXPECT_EQ(out_, "1.2.3\n");
  EXPECT_THAT(err_, IsEmpty());
}

TEST_F(CommandLineTest, AWrongLineEndsWithTwoAndSaysWhy) {
  EXPECT_EQ(Parse({}), kExitUsage);
  EXPECT_EQ(Parse({"paint", "--thick"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--thick"));
  EXPECT_THAT(out_, IsEmpty());
}

TEST_F(CommandLineTest, ValuesOfAllKindsLandInTheirVariables) {
  std::string text;
  int number = 0;
  uint32_t small = 0;
  uint64_t large = 0;
  float single = 0;
  double twice = 0;
  bool on = false, off = false;
  paint_->Add("--text", &text, "");
  paint_->Add("--number", &number, "");
  paint_->Add("--small", &small, "");
  paint_->Add("--large,-l", &large, "");
  paint_->Add("--single", &single, "");
  paint_->Add("--twice", &twice, "");
  paint_->AddSwitch("--on", &on, "");
  paint_->AddSwitch("--off", &off, "");
  EXPECT_EQ(Parse({"paint", "--text", "a b", "--number", "-3", "--small", "7", "-l",
                   "18446744073709551615", "--single", "0.5", "--twice", "1e-3", "--on"}),
            std::nullopt);
  EXPECT_EQ(text, "a b");
  EXPECT_EQ(number, -3);
  EXPECT_EQ(small, 7u);
  EXPECT_EQ(large, UINT64_MAX);
  EXPECT_EQ(single, 0.5f);
  EXPECT_EQ(twice, 1e-3);
  EXPECT_TRUE(on);
  EXPECT_FALSE(off);
}

TEST_F(CommandLineTest, AValueOfTheWrongKindIsRefused) {
  uint32_t small = 0;
  paint_->Add("--small", &small, "");
  for (const char* wrong : {"x", "-1", "1.5", "4294967296"}) {
    EXPECT_EQ(Parse({"paint", "--small", wrong}), kExitUsage) << wrong;
    EXPECT_THAT(err_, HasSubstr("--small")) << wrong;
  }
}

TEST_F(CommandLineTest, APlainNameIsToldByItsPositionAndMayBeRequired) {
  std::string wall, colour;
  paint_->Add("wall", &wall, "").Required();
  paint_->Add("colour", &colour, "");
  EXPECT_EQ(Parse({"paint", "north"}), std::nullopt);
  EXPECT_EQ(wall, "north");
  EXPECT_EQ(Parse({"paint", "south", "red"}), std::nullopt);
  EXPECT_EQ(colour, "red");
  EXPECT_EQ(Parse({"paint"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("wall is required"));
}

TEST_F(CommandLineTest, ListsAreSplitAtCommasOrTakeOneValueEach) {
  std::vector<double> shares = {0.5};
  std::vector<std::string> stops;
  std::string rest;
  paint_->Add("--share", &shares, "").SplitAtCommas();
  paint_->Add("--stop", &stops, "").OneValueEach();
  paint_->Add("rest", &rest, "");
  EXPECT_EQ(Parse({"paint", "--share", "0.1,0.2", "--stop", "a,b", "--stop", "c", "last"}),
            std::nullopt);
  EXPECT_THAT(shares, ElementsAre(0.1, 0.2));
  EXPECT_THAT(stops, ElementsAre("a,b", "c"));
  EXPECT_EQ(rest, "last");
}

TEST_F(CommandLineTest, AChoiceIsOneOfItsWordsAndARefusalNamesThem) {
  int chosen = 0;
  paint_->AddChoice(
      "--size", {{"small", 1}, {"large", 9}}, [&chosen](int size) { chosen = size; }, "how much");
  EXPECT_EQ(Parse({"paint", "--size", "large"}), std::nullopt);
  EXPECT_EQ(chosen, 9);
  for (const char* wrong : {"huge", "Large", "9", ""}) {
    EXPECT_EQ(Parse({"paint", "--size", wrong}), kExitUsage) << wrong;
    EXPECT_THAT(err_,
                HasSubstr("--size: \"" + std::string(wrong) + "\" is not one of large, small"));
  }
  EXPECT_EQ(chosen, 9);
}

TEST_F(CommandLineTest, AGroupTakesExactlyOneFlagAndAnEmptyValueCounts) {
  std::string text, file;
  bool has_text = false;
  CommandFlags group = paint_->AddOneOf("source", "Where from");
  group.Add("--text", &text, "").Mark(&has_text);
  group.Add("--file", &file, "");
  EXPECT_EQ(Parse({"paint"}), kExitUsage);
  EXPECT_EQ(Parse({"paint", "--text", "a", "--file", "b"}), kExitUsage);
  has_text = false;
  EXPECT_EQ(Parse({"paint", "--file", "b"}), std::nullopt);
  EXPECT_FALSE(has_text);
  EXPECT_EQ(Parse({"paint", "--text", ""}), std::nullopt);
  EXPECT_TRUE(has_text);
}

TEST_F(CommandLineTest, ChecksRefuseAValueAndSayWhy) {
  std::string colour;
  double wait_s = 0, share = 0;
  paint_->Add("--colour", &colour, "").Check([](const std::string& text) {
    return text == "red" ? "" : "only red is left";
  });
  paint_->Add("--wait", &wait_s, "").NotNegative();
  paint_->Add("--share", &share, "").Between(0.0, 1.0);
  EXPECT_EQ(Parse({"paint", "--colour", "red", "--wait", "0", "--share", "1"}), std::nullopt);
  EXPECT_EQ(Parse({"paint", "--colour", "blue"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("only red is left"));
  EXPECT_EQ(Parse({"paint", "--wait", "-1"}), kExitUsage);
  EXPECT_EQ(Parse({"paint", "--share", "1.1"}), kExitUsage);
}

TEST_F(CommandLineTest, DurationsHaveUnitsOrAreSeconds) {
  absl::Duration wait;
  paint_->Add("--wait", &wait, "");
  for (const auto& [text, expected] :
       std::vector<std::pair<std::string, absl::Duration>>{{"250ms", absl::Milliseconds(250)},
                                                           {"1m30s", absl::Seconds(90)},
                                                           {"2", absl::Seconds(2)},
                                                           {"0.5", absl::Milliseconds(500)},
                                                           {"0", absl::ZeroDuration()}}) {
    EXPECT_EQ(Parse({"paint", "--wait", text}), std::nullopt) << err_;
    EXPECT_EQ(wait, expected) << text;
  }
  for (const char* text : {"3x", "-1", "1e3", ".", "", "2 weeks"}) {
    EXPECT_EQ(Parse({"paint", "--wait", text}), kExitUsage) << text;
    EXPECT_THAT(err_, HasSubstr("--wait")) << text;
  }
}

TEST_F(CommandLineTest, HelpShowsDefaultsPlaceholdersHeadingsAndVariables) {
  uint32_t coats = 3, hidden = 4;
  std::string file;
  paint_->Add("--coats", &coats, "how many").ShowDefault();
  paint_->Add("--hidden", &hidden, "said nowhere");
  paint_->Add("--out", &file, "where to")
      .Placeholder("FILE")
      .Heading("Places")
      .Variable("TOOL_OUT");
  EXPECT_EQ(Parse({"paint", "--help"}), kExitOk);
  EXPECT_THAT(out_, AllOf(HasSubstr("--coats UINT=3"), Not(HasSubstr("=4")),
                          HasSubstr("--out FILE"), HasSubstr("Places:\n")));
}

TEST_F(CommandLineTest, AVariableOfTheEnvironmentStandsInForAFlag) {
  ASSERT_EQ(::setenv("HEARTH_COMMAND_LINE_TEST", "from outside", 1), 0);
  std::string text;
  paint_->Add("--text", &text, "").Variable("HEARTH_COMMAND_LINE_TEST");
  EXPECT_EQ(Parse({"paint"}), std::nullopt);
  EXPECT_EQ(text, "from outside");
  EXPECT_EQ(Parse({"paint", "--text", "said"}), std::nullopt);
  EXPECT_EQ(text, "said");
  ::unsetenv("HEARTH_COMMAND_LINE_TEST");
}

}  // namespace
}  // namespace hearth
