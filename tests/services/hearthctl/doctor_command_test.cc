// doctor against a real store and workers that answer as told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "tests/services/hearthctl/fake_worker.h"
#include "tests/services/hearthctl/run_cli.h"
#include "tests/services/store/store_server.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

TEST_F(DoctorCommandTest, OneWorkerRestoresThePointsOfAnother) {
  const CliResult result = Look({one_.address(), one_.address()});
  EXPECT_EQ(result.code, kExitOk) << result.out;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("equal at all 2 workers"), HasSubstr("stored 32 tokens (disk)"),
                    HasSubstr("16 tokens restored"), Not(HasSubstr("wrong"))));
  EXPECT_EQ(one_.generated.size(), 2u);
  EXPECT_EQ(Look({one_.address()}, {"--no-probe"}).code, kExitOk);
  EXPECT_EQ(one_.generated.size(), 2u) << "no probe";
}

TEST_F(DoctorCommandTest, AProbeThatFailsIsDroppedToo) {
  ASSERT_EQ(
      RunCli({"import", HEARTH_GOLDEN_DIR "/tiny.snapshot", "--store", store_.address()}).code,
      kExitOk);
  const auto stored = [&] { return RunCli({"ls", "--json", "--store", store_.address()}); };
  ASSERT_EQ(stored().objects.size(), 1u);
  // The probe was stored, and then its worker went down.
  one_.failure_between_words = grpc::Status(grpc::StatusCode::UNAVAILABLE, "going down");
  one_.explained.set_summary("stored");
  one_.explained.add_boundaries()->set_restore_point_id(
      absl::HexStringToBytes(stored().last()["restore_point_id"].get<std::string>()));
  const CliResult result = Look({one_.address()});
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_THAT(result.out, HasSubstr("wrong  probe"));
  EXPECT_EQ(stored().objects.size(), 0u);
}

TEST_F(DoctorCommandTest, WorkersThatShareNothingAreFoundOut) {
  const CliResult result = Look({one_.address(), other_.address()});
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_THAT(result.out, AllOf(HasSubstr("wrong  sharing"), HasSubstr("nothing was restored")));
}

TEST_F(DoctorCommandTest, TheFieldThatDiffersIsNamed) {
  one_.field_dtype = "float32";
  other_.field_dtype = "bfloat16";
  const CliResult result = Look({one_.address(), other_.address()}, {"--no-probe"});
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_THAT(result.out, AllOf(HasSubstr("wrong  fingerprint"), HasSubstr("dtype is"),
                                HasSubstr(one_.address()), HasSubstr(other_.address())));
}

TEST_F(DoctorCommandTest, AMissingServerIsNamedAndTheRestIsLookedAt) {
  const CliResult result = Look({"127.0.0.1:9", one_.address()}, {"--json", "--no-probe"});
  EXPECT_EQ(result.code, kExitFailed);
  ASSERT_GE(result.objects.size(), 3u);
  bool is_named = false, is_looked_at = false;
  for (const Json& finding : result.objects) {
    const std::string text = finding["text"].get<std::string>();
    is_named |= finding["state"] == "wrong" && text.find("127.0.0.1:9") != text.npos;
    is_looked_at |= text.find("worker at " + one_.address()) == 0;
  }
  EXPECT_TRUE(is_named && is_looked_at) << result.out;
}

TEST_F(DoctorCommandTest, AStoreThatAWorkerDoesNotReachIsNamed) {
  one_.unreachable_store = "store:7080";
  const CliResult result = Look({one_.address()}, {"--no-probe"});
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("wrong  store"), HasSubstr(one_.address()), HasSubstr("store:7080")));
}

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
