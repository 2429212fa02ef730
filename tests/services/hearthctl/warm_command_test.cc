#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "proto/cache_store.grpc.pb.h"
#include "tests/services/hearthctl/fake_worker.h"
#include "tests/services/hearthctl/run_cli.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WarmCommandTest : public ::testing::Test {
 protected:
  CliResult Warm(const std::string& yaml, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {
        "warm",  "--worker", worker_.address(), "--file", folder_.Write("prompts.yaml", yaml),
        "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunCli(arguments);
  }

  FakeWorker worker_;
  TestFolder folder_;
};

// A fake store that implements only Pin.
class PinStore final : public v1::CacheStore::Service {
 public:
  PinStore() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~PinStore() override { server_->Shutdown(); }
  const std::string& address() const { return address_; }

  std::set<std::string> refused;  // restore point ids for which Pin fails
  std::vector<std::string> pinned;

  grpc::Status Pin(grpc::ServerContext*, const v1::PinRequest* request, v1::PinResponse*) override {
    if (refused.count(request->restore_point_id()) > 0) {
      return {grpc::StatusCode::NOT_FOUND, "evicted meanwhile"};
    }
    pinned.push_back(request->restore_point_id());
    return grpc::Status::OK;
  }

 private:
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

constexpr char kPinned[] = R"(
prompts:
  - {name: long, text: "forty characters, more than two chunks..", breakpoints: [5], pin: true}
)";

TEST_F(WarmCommandTest, EveryStoredBoundaryIsPinned) {
  PinStore store;
  const CliResult result = Warm(kPinned, {"--store", store.address()});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(store.pinned,
              ElementsAre(FakeWorker::RestorePointId(5), FakeWorker::RestorePointId(32)));
  EXPECT_EQ(result.objects.at(0)["pinned"], true);
  EXPECT_EQ(result.objects.at(0)["pinned_boundaries"], (std::vector<uint32_t>{5, 32}));
  EXPECT_EQ(result.last()["failed"], 0);
}

TEST_F(WarmCommandTest, OnePinFailureKeepsOtherPins) {
  PinStore store;
  store.refused = {FakeWorker::RestorePointId(5)};
  const CliResult refused = Warm(kPinned, {"--store", store.address()});
  EXPECT_EQ(refused.code, kExitFailed);
  EXPECT_THAT(store.pinned, ElementsAre(FakeWorker::RestorePointId(32)));
  EXPECT_EQ(refused.objects.at(0)["pinned"], false);
  EXPECT_EQ(refused.objects.at(0)["pinned_boundaries"], (std::vector<uint32_t>{32}));
  EXPECT_EQ(refused.last()["failed"], 1);
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr("long: not pinned at boundary 5"), HasSubstr("evicted meanwhile")));

  worker_.without_restore_point = {32};
  store.refused.clear();
  const CliResult nameless = Warm(kPinned, {"--store", store.address()});
  EXPECT_EQ(nameless.code, kExitFailed);
  EXPECT_EQ(nameless.objects.at(0)["pinned_boundaries"], (std::vector<uint32_t>{5}));
  EXPECT_THAT(nameless.err, HasSubstr("not pinned at boundary 32: no restore point ends"));
}

}  // namespace
}  // namespace hearth
