// The secret of a shared tier, and files that change while a store runs.
#include <gtest/gtest.h>

#include <fstream>

#include "cache_store/base/reread_file.h"
#include "tests/cache_store/shared/shared_kit.h"

namespace hearth {
namespace {

TEST_F(SharedSecretTest, AChangedSecretMakesMissesOfWhatWasWrittenBefore) {
  const KitPrompt before = Prompt(1), after = Prompt(2);
  SharedNode writer = kit_.Node(), early = kit_.Node();
  Publish(&writer, before, {64});
  EXPECT_EQ(Fetch(&early, before), 64u);

  Take(second_);
  SharedNode reader = kit_.Node();
  EXPECT_EQ(Fetch(&reader, before), 0u);
  Publish(&writer, after, {64});
  EXPECT_EQ(Fetch(&reader, after), 64u);
  EXPECT_EQ(Fetch(&early, after), 64u) << "which has heard of it by now";
  EXPECT_EQ(Fetch(&writer, before), 64u) << "what is here stays";

  Take(first_);
  SharedNode late = kit_.Node();
  EXPECT_EQ(Fetch(&late, before), 64u);
  EXPECT_EQ(Fetch(&late, after), 0u);
}

class RereadFileTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) { std::ofstream(path_) << text; }

  const TestFolder folder_;
  const std::string path_ = folder_.path() + "/secret";
  std::vector<absl::Status> reports_;
  RereadFile file_{path_,
                   [](const std::string& path) -> absl::StatusOr<std::string> {
                     std::string text;
                     std::getline(std::ifstream(path), text);
                     if (text.size() < 5) return absl::FailedPreconditionError("too short");
                     return text;
                   },
                   [this](const absl::Status& status) { reports_.push_back(status); }};
};

TEST_F(RereadFileTest, IsReadAgainOnceItHasChanged) {
  EXPECT_FALSE(file_.Text().ok());
  Write("first");
  EXPECT_EQ(file_.Text().value(), "first");
  Write("second");
  EXPECT_EQ(file_.Text().value(), "second");
  EXPECT_TRUE(reports_.empty());
}

TEST_F(RereadFileTest, OneThatCannotBeUsedIsReportedOnceAndChangesNothing) {
  Write("first");
  EXPECT_EQ(file_.Text().value(), "first");
  Write("sec");
  EXPECT_EQ(file_.Text().value(), "first");
  EXPECT_EQ(file_.Text().value(), "first");
  EXPECT_EQ(reports_.size(), 1u);
  ASSERT_EQ(std::remove(path_.c_str()), 0);
  EXPECT_EQ(file_.Text().value(), "first");
  EXPECT_EQ(reports_.size(), 2u);
  Write("second");
  EXPECT_EQ(file_.Text().value(), "second");
  EXPECT_EQ(reports_.size(), 2u);
}

}  // namespace
}  // namespace hearth
