#include "services/cli/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <sstream>

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct PaintFlags {
  std::string wall;
};
int Paint(const PaintFlags& flags, Console& console) {
  console.out << "painted " << flags.wall;
  return 7;
}
int Wash(const PaintFlags&, Console&) { return 8; }

// Declares a program "tool" with the commands "paint" and "wash". The tests parse the flags of
// "paint".
class CommandLineTest : public ::testing::Test {
 protected:
  std::optional<int> Parse(const std::vector<std::string>& words) {
    std::istringstream in;
    std::ostringstream out, err;
    Console console{in, out, err};
    std::optional<int> ended = line_.Parse(words, console);
    if (!ended.has_value()) ran_ = line_.RunChosen(console);
    out_ = out.str();
    err_ = err.str();
    return ended;
  }

  CommandLine line_{{"tool", "What it is for.", "The end.", "1.2.3"}};
  const std::pair<CLI::App*, PaintFlags*> added_ =
      line_.Add("paint", "Put colour on it", "Paint's end.", Paint);
  CLI::App* const paint_ = added_.first;
  CLI::App* const wash_ = line_.Add("wash", "Take dirt off it", "Wash's end.", Wash).first;
  std::string out_, err_;
  int ran_ = 0;  // exit code that the command returns
};

TEST_F(CommandLineTest, ChosenCommandRunsWithFlags) {
  paint_->add_option("wall", added_.second->wall);
  EXPECT_EQ(Parse({"wash"}), std::nullopt);
  EXPECT_EQ(ran_, 8);
  EXPECT_EQ(Parse({"paint", "north"}), std::nullopt);
  EXPECT_EQ(ran_, 7);
  EXPECT_EQ(out_, "painted north");
  EXPECT_THAT(line_.names(), ElementsAre("paint", "wash"));
}

TEST_F(CommandLineTest, HelpAndVersionExitZero) {
  EXPECT_EQ(Parse({"--help"}), kExitOk);
  EXPECT_THAT(out_, AllOf(HasSubstr("What it is for."), HasSubstr("Put colour on it"),
                          HasSubstr("The end.")));
  EXPECT_EQ(Parse({"paint", "--help"}), kExitOk);
  EXPECT_THAT(out_, HasSubstr("Paint's end."));
  EXPECT_EQ(Parse({"--version"}), kExitOk);
  EXPECT_EQ(out_, "1.2.3\n");
  EXPECT_THAT(err_, IsEmpty());
}

TEST_F(CommandLineTest, WrongUsageExitsTwo) {
  EXPECT_EQ(Parse({}), kExitUsage);
  EXPECT_EQ(Parse({"paint", "--thick"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--thick"));
  EXPECT_THAT(out_, IsEmpty());
}

TEST_F(CommandLineTest, UnknownChoiceErrorListsChoices) {
  int chosen = 0;
  AddChoice(
      paint_, "--size", {{"small", 1}, {"large", 9}}, [&chosen](int size) { chosen = size; },
      "how much");
  EXPECT_EQ(Parse({"paint", "--size", "large"}), std::nullopt);
  EXPECT_EQ(chosen, 9);
  for (const char* wrong : {"huge", "Large", "9", ""}) {
    EXPECT_EQ(Parse({"paint", "--size", wrong}), kExitUsage) << wrong;
    EXPECT_THAT(
        err_, HasSubstr("--size: must be one of large, small; got \"" + std::string(wrong) + "\""));
  }
  EXPECT_EQ(chosen, 9);
}

TEST_F(CommandLineTest, DurationWithoutUnitIsSeconds) {
  absl::Duration wait;
  AddDuration(
      paint_, "--wait", [&wait](absl::Duration given) { wait = given; }, "");
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

}  // namespace
}  // namespace hearth
