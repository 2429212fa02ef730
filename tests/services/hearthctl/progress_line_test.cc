#include "services/hearthctl/progress_line.h"

#include <gtest/gtest.h>

#include <sstream>

namespace hearth {
namespace {

class ProgressLineTest : public ::testing::Test {
 protected:
  // Returns the text that the line has written since the previous call.
  std::string Said() {
    std::string said = err_.str();
    err_.str("");
    return said;
  }
  std::istringstream in_;
  std::ostringstream out_, err_;
  Console console_{in_, out_, err_};
  const absl::Time start_ = absl::FromUnixSeconds(1000);
};

TEST_F(ProgressLineTest, LineIsOverwrittenAndCleared) {
  console_.progress = true;
  {
    ProgressLine line(&console_);
    EXPECT_EQ(Said(), "");
    line.Show(128, 1128, start_);
    EXPECT_EQ(Said(), "\rcomputing the prompt: 128 of 1128 tokens, 11 %\x1b[K");
    line.Show(328, 1128, start_ + absl::Seconds(2));
    EXPECT_EQ(Said(), "\rcomputing the prompt: 328 of 1128 tokens, 29 %, about 8 s left\x1b[K");
    line.Clear();
    EXPECT_EQ(Said(), "\r\x1b[K");
    line.Clear();
    EXPECT_EQ(Said(), "");
    line.Show(1128, 1128, start_);
    EXPECT_EQ(Said(), "\rcomputing the prompt: 1128 of 1128 tokens, 100 %\x1b[K");
  }
  EXPECT_EQ(Said(), "\r\x1b[K") << "nothing of it stays";
}

TEST_F(ProgressLineTest, HiddenLineWritesNothing) {
  {
    ProgressLine line(&console_);
    line.Show(1, 2, start_);
    EXPECT_FALSE(line.is_seen());
  }
  EXPECT_EQ(Said(), "");
}

TEST_F(ProgressLineTest, ImpossibleNumbersAreHarmless) {
  console_.progress = true;
  ProgressLine line(&console_);
  line.Show(0, 0, start_);
  EXPECT_EQ(Said(), "");
  line.Show(UINT32_MAX, 7, start_);
  line.Show(3, UINT32_MAX, start_);
  EXPECT_NE(Said(), "");
}

}  // namespace
}  // namespace hearth
