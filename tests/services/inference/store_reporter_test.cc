#include "services/inference/store_reporter.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "absl/synchronization/notification.h"

namespace hearth {
namespace {

class StoreReporterTest : public ::testing::Test {
 protected:
  void Report() { pause_ = reporter_.ReportOnce(); }
  const v1::ReportRequest& last() const { return sent_.back(); }

  static v1::ReportRequest Names() {
    v1::ReportRequest names;
    names.set_name(std::string(300, 'n'));
    for (int i = 0; i < 20; ++i) names.add_models()->set_name("m" + std::to_string(i));
    return names;
  }

  uint64_t total_ = 0;
  absl::Status answer_;
  absl::Duration pause_;
  std::function<void()> on_call_;  // called in each call, before its answer
  std::vector<v1::ReportRequest> sent_;
  StoreReporter reporter_{
      Names(),
      [this](v1::ReportRequest* report) {
        report->set_unasked_tokens(total_ + 5);
        report->set_unasked_held_tokens(total_);
      },
      [this](const v1::ReportRequest& report, absl::Duration) -> absl::StatusOr<bool> {
        sent_.push_back(report);
        if (on_call_) on_call_();
        if (!answer_.ok()) return answer_;
        return true;
      }};
};

TEST_F(StoreReporterTest, EachReportHasTheGrowthSinceTheLast) {
  total_ = 100;
  Report();
  EXPECT_EQ(last().sequence(), 1u);
  EXPECT_EQ(last().unasked_held_tokens(), 100u);
  EXPECT_EQ(last().unasked_tokens(), 105u);
  total_ = 130;
  Report();
  EXPECT_EQ(last().sequence(), 2u);
  EXPECT_EQ(last().unasked_held_tokens(), 30u);
  EXPECT_EQ(last().unasked_tokens(), 30u);
  EXPECT_EQ(last().instance(), sent_[0].instance());
  EXPECT_EQ(last().instance().size(), 16u);
  EXPECT_EQ(pause_, StoreReporter::kPeriod);
}

TEST_F(StoreReporterTest, ReportWithoutAnswerIsRepeatedUnchanged) {
  total_ = 100;
  answer_ = absl::DeadlineExceededError("late");
  Report();
  total_ = 150;
  Report();
  EXPECT_EQ(pause_, StoreReporter::kPeriod);
  EXPECT_EQ(last().sequence(), 1u);
  EXPECT_EQ(last().unasked_held_tokens(), 100u);
  answer_ = absl::OkStatus();
  Report();
  EXPECT_EQ(last().unasked_held_tokens(), 100u);
  Report();
  EXPECT_EQ(last().sequence(), 2u);
  EXPECT_EQ(last().unasked_held_tokens(), 50u);
}

TEST_F(StoreReporterTest, OlderStoreIsAskedRarely) {
  answer_ = absl::UnimplementedError("unknown method Report");
  Report();
  EXPECT_EQ(pause_, StoreReporter::kRefusedPause);
  answer_ = absl::OkStatus();  // the store was upgraded
  total_ = 7;
  Report();
  EXPECT_EQ(pause_, StoreReporter::kPeriod);
  Report();
  EXPECT_EQ(sent_[1].unasked_held_tokens() + sent_[2].unasked_held_tokens(), 7u);
}

TEST_F(StoreReporterTest, GrowthAboveTheLimitIsSplit) {
  total_ = uint64_t{UINT32_MAX} + 9;
  Report();
  EXPECT_EQ(last().unasked_held_tokens(), UINT32_MAX);
  Report();
  EXPECT_EQ(last().unasked_held_tokens(), 9u);
}

TEST_F(StoreReporterTest, NamesAreShortened) {
  Report();
  EXPECT_EQ(last().name().size(), 128u);
  EXPECT_EQ(last().models_size(), 16);
}

TEST_F(StoreReporterTest, NamesAreCutBetweenCharacters) {
  v1::ReportRequest names;
  for (int i = 0; i < 43; ++i) names.mutable_name()->append("\u706f");  // 3 bytes each
  names.set_device("cpu\xff");
  v1::ReportRequest sent;
  StoreReporter reporter(
      names, [](v1::ReportRequest*) {},
      [&](const v1::ReportRequest& report, absl::Duration) -> absl::StatusOr<bool> {
        sent = report;
        return false;
      });
  reporter.ReportOnce();
  EXPECT_EQ(sent.name(), names.name().substr(0, 126));
  EXPECT_EQ(sent.device(), "cpu");
}

TEST_F(StoreReporterTest, StopSendsALastReport) {
  reporter_.Start();
  reporter_.Stop();
  ASSERT_FALSE(sent_.empty());  // the thread reports at once
  EXPECT_TRUE(last().leaving());
}

TEST_F(StoreReporterTest, StopRepeatsAReportWithoutAnswer) {
  absl::Notification called;
  on_call_ = [&] {
    answer_ = sent_.size() == 1 ? absl::DeadlineExceededError("late") : absl::OkStatus();
    total_ += 10;
    if (!called.HasBeenNotified()) called.Notify();
  };
  reporter_.Start();
  called.WaitForNotification();
  reporter_.Stop();
  ASSERT_EQ(sent_.size(), 3u);
  EXPECT_EQ(sent_[1].sequence(), 1u);
  EXPECT_FALSE(sent_[1].leaving());
  EXPECT_EQ(last().sequence(), 2u);
  EXPECT_EQ(last().unasked_held_tokens(), 20u);
  EXPECT_TRUE(last().leaving());
}

TEST_F(StoreReporterTest, StopIsSilentWithoutAnswers) {
  answer_ = absl::UnavailableError("no store");
  reporter_.Start();
  reporter_.Stop();
  for (const v1::ReportRequest& report : sent_) EXPECT_FALSE(report.leaving());
}

}  // namespace
}  // namespace hearth
