// Files of passwords and certificates that change while a store runs.
#include <gtest/gtest.h>

#include <fstream>

#include "cache_store/base/reread_file.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

class RereadFileTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) { std::ofstream(path_) << text; }

  const TestFolder folder_;
  const std::string path_ = folder_.path() + "/secret";
  std::vector<absl::Status> reports_;
  RereadFile file_{{path_},
                   [path = path_]() -> absl::StatusOr<std::string> {
                     std::string text;
                     std::getline(std::ifstream(path), text);
                     if (text.size() < 5) return absl::FailedPreconditionError("too short");
                     return text;
                   },
                   [this](const absl::Status& status) { reports_.push_back(status); }};
};

TEST_F(RereadFileTest, ChangedFileIsReread) {
  EXPECT_FALSE(file_.Get().ok());
  Write("first");
  EXPECT_EQ(file_.Get().value(), "first");
  Write("second");
  EXPECT_EQ(file_.Get().value(), "second");
  EXPECT_TRUE(reports_.empty());
}

TEST_F(RereadFileTest, UnusableFileIsReportedOnce) {
  Write("first");
  EXPECT_EQ(file_.Get().value(), "first");
  Write("sec");
  EXPECT_EQ(file_.Get().value(), "first");
  EXPECT_EQ(file_.Get().value(), "first");
  EXPECT_EQ(reports_.size(), 1u);
  ASSERT_EQ(std::remove(path_.c_str()), 0);
  EXPECT_EQ(file_.Get().value(), "first");
  EXPECT_EQ(reports_.size(), 2u);
  Write("second");
  EXPECT_EQ(file_.Get().value(), "second");
  EXPECT_EQ(reports_.size(), 2u);
}

}  // namespace
}  // namespace hearth
