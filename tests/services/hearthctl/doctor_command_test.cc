// doctor against a real store and workers that answer as told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/services/hearthctl/fake_worker.h"
#include "tests/services/hearthctl/run_cli.h"
#include "tests/services/store/store_server.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DoctorCommandTest : public ::testing::Test {
 protected:
  CliResult Look(const std::vector<std::string>& workers, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"doctor", "--store", store_.address()});
    for (const std::string& worker : workers) {
      more.push_back("--worker");
      more.push_back(worker);
    }
    return RunCli(more);
  }

  StoreServer store_{StoreServer::SmallStore("")};
  FakeWorker one_, other_;
};

TEST_F(DoctorCommandTest, ClocksThatShowTheSameAreSaidTo) {
  const CliResult result = Look({one_.address()}, {"--no-probe"});
  EXPECT_EQ(result.code, kExitOk);
  EXPECT_THAT(result.out, HasSubstr("ok     clocks        of all differ by 0."));
}

TEST_F(DoctorCommandTest, AClockThatIsAheadIsNamedWithWhatToDo) {
  other_.clock_ahead = absl::Minutes(2);
  const CliResult result = Look({one_.address(), other_.address()}, {"--no-probe"});
  EXPECT_EQ(result.code, kExitOk);
  EXPECT_THAT(result.out, AllOf(HasSubstr("look   clocks        worker at " + other_.address() +
                                          " is 1"),  // 120 s, less the time between two looks
                                HasSubstr("s ahead of "), HasSubstr("NTP")));
}

TEST_F(DoctorCommandTest, TheDisksSpeedIsMeasuredAndNothingIsLeft) {
  const TestFolder folder;
  const CliResult result = Look({one_.address()}, {"--no-probe", "--data-dir", folder.path()});
  EXPECT_THAT(result.out, HasSubstr("MB/s written and synced"));
  EXPECT_EQ(folder.Files(), 0u);
  EXPECT_EQ(Look({one_.address()}, {"--no-probe", "--data-dir", "/nonexistent"}).code, kExitFailed);
}

}  // namespace
}  // namespace hearth
