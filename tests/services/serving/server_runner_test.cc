#include "services/serving/server/server_runner.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "proto/cache_store.grpc.pb.h"
#include "services/serving/access/listeners.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

// A store whose Stats call can wait until the test releases it.
class TestService final : public v1::CacheStore::Service {
 public:
  explicit TestService(Admission* admission) : admission_(admission) {}
  grpc::Status Stats(grpc::ServerContext* context, const v1::StatsRequest*,
                     v1::StatsResponse* response) override {
    auto call = admission_->Enter("Stats");
    if (call == nullptr) return {grpc::StatusCode::UNAVAILABLE, "closed"};
    if (!entered.HasBeenNotified()) entered.Notify();
    if (wait) release.WaitForNotification();
    while (wait_for_cancel && !context->IsCancelled()) std::this_thread::yield();
    response->set_version("test");
    return grpc::Status::OK;
  }
  bool wait = false, wait_for_cancel = false;
  absl::Notification entered, release;

 private:
  Admission* const admission_;
};

class ServerRunnerTest : public testing::Test {
 protected:
  void Start(const std::string& listen = "127.0.0.1:0") {
    auto runner = ServerRunner::Start(listen, {{"hearth.v1.CacheStore", &service_}}, &admission_);
    ASSERT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
    channel_ = ConnectedTo(runner_->address());
  }
  grpc::Status Stats(v1::StatsResponse* response) {
    grpc::ClientContext context;
    return v1::CacheStore::NewStub(channel_)->Stats(&context, {}, response);
  }
  // Calls a unary method with a raw message, as a client without generated code would.
  grpc::Status CallRaw(const std::string& method, const std::string& request,
                       std::string* response);

  Admission admission_;
  TestService service_{&admission_};
  const TestFolder folder_;  // destroyed after the server, which writes into it
  std::unique_ptr<ServerRunner> runner_;
  std::shared_ptr<grpc::Channel> channel_;
};

grpc::Status ServerRunnerTest::CallRaw(const std::string& method, const std::string& request,
                                       std::string* response) {
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::Slice slice(request);
  grpc::ByteBuffer out(&slice, 1), in;
  auto call = stub.PrepareCall(&context, method, &queue);
  grpc::Status status;
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  call->WriteLast(out, {}, nullptr);
  queue.Next(&tag, &ok);
  call->Read(&in, nullptr);
  queue.Next(&tag, &ok);
  if (ok) {
    std::vector<grpc::Slice> slices;
    in.Dump(&slices);
    for (const grpc::Slice& part : slices) {
      response->append(reinterpret_cast<const char*>(part.begin()), part.size());
    }
  }
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  return status;
}

// Returns a serialized grpc.health.v1.HealthCheckRequest for `service`.
std::string HealthRequest(const std::string& service) {
  return std::string("\x0a") + static_cast<char>(service.size()) + service;
}
constexpr char kServing[] = "\x08\x01";
constexpr char kNotServing[] = "\x08\x02";

TEST(ListenersTest, CheckRefusesTakenPort) {
  for (const std::string host : {"127.0.0.1:", "0.0.0.0:"}) {
    auto own = std::make_unique<Listeners>(host + "0");
    ASSERT_TRUE(own->Open().ok());
    const std::string address = absl::StrCat(host, own->port());
    const absl::Status refused = Listeners(address).Check();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << address;
    EXPECT_TRUE(absl::StrContains(refused.message(), "cannot listen on " + address)) << refused;
  }
}

TEST_F(ServerRunnerTest, PortZeroServesOnFreePort) {
  Start();
  EXPECT_TRUE(absl::StartsWith(runner_->address(), "127.0.0.1:"));
  EXPECT_FALSE(absl::EndsWith(runner_->address(), ":0"));
  v1::StatsResponse response;
  EXPECT_TRUE(Stats(&response).ok());
  EXPECT_EQ(response.version(), "test");
}

TEST_F(ServerRunnerTest, ServesOnUnixSocket) {
  Start("unix:" + folder_.File("socket"));
  v1::StatsResponse response;
  EXPECT_TRUE(Stats(&response).ok());
}

TEST_F(ServerRunnerTest, ErrorNamesTakenListenAddress) {
  Start();
  Admission admission;
  TestService service(&admission);
  auto second =
      ServerRunner::Start(runner_->address(), {{"hearth.v1.CacheStore", &service}}, &admission);
  ASSERT_FALSE(second.ok());
  EXPECT_TRUE(absl::StrContains(second.status().message(), runner_->address()));
}

TEST_F(ServerRunnerTest, CheckLeavesPortFree) {
  Start();
  Listeners taken(runner_->address());
  EXPECT_TRUE(absl::StrContains(taken.Check().message(), runner_->address()));
  const std::string address = runner_->address();
  channel_.reset();
  runner_.reset();
  ASSERT_TRUE(Listeners(address).Check().ok());
  grpc::ClientContext context;
  EXPECT_EQ(
      v1::CacheStore::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))
          ->Stats(&context, {}, nullptr)
          .error_code(),
      grpc::StatusCode::UNAVAILABLE);
  Admission admission;
  TestService service(&admission);
  auto serves = ServerRunner::Start(address, {{"hearth.v1.CacheStore", &service}}, &admission);
  EXPECT_TRUE(serves.ok()) << serves.status();
}

TEST_F(ServerRunnerTest, HealthIsReportedPerService) {
  Start();
  for (const char* name : {"", "hearth.v1.CacheStore"}) {
    std::string response;
    EXPECT_TRUE(CallRaw("/grpc.health.v1.Health/Check", HealthRequest(name), &response).ok());
    EXPECT_EQ(response, kServing) << name;
  }
  std::string response;
  EXPECT_EQ(
      CallRaw("/grpc.health.v1.Health/Check", HealthRequest("no.such"), &response).error_code(),
      grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServerRunnerTest, ListsItsServicesByReflection) {
  Start();
  std::string response;
  // A serialized ServerReflectionRequest: list_services = "*".
  EXPECT_TRUE(CallRaw("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "\x3a\x01*",
                      &response)
                  .ok());
  EXPECT_TRUE(absl::StrContains(response, "hearth.v1.CacheStore")) << response;
}

TEST_F(ServerRunnerTest, DrainRefusesCallsThenFlushes) {
  Start();
  service_.wait = true;
  grpc::Status running;
  v1::StatsResponse response;
  std::thread caller([&] { running = Stats(&response); });
  service_.entered.WaitForNotification();
  absl::Notification flushed;
  bool idle_at_flush = false;
  std::thread drainer([&] {
    runner_->Drain(absl::InfiniteDuration(), [&](absl::Time deadline) {
      EXPECT_LE(deadline, absl::Now() + kFlushTimeout);
      idle_at_flush = admission_.running() == 0;
      flushed.Notify();
    });
  });
  // The health status changes before the admission refuses calls, so a refused call proves that it
  // has changed.
  v1::StatsResponse late;
  while (!admission_.closed()) std::this_thread::yield();
  std::string health;
  EXPECT_TRUE(CallRaw("/grpc.health.v1.Health/Check", HealthRequest(""), &health).ok());
  EXPECT_EQ(health, kNotServing);
  EXPECT_EQ(Stats(&late).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(flushed.HasBeenNotified()) << "a call is still running";
  service_.release.Notify();
  drainer.join();
  caller.join();
  EXPECT_TRUE(flushed.HasBeenNotified());
  EXPECT_TRUE(idle_at_flush);
  EXPECT_TRUE(running.ok()) << "the running call was finished: " << running.error_message();
}

// The flush of an engine waits for calls. So a call that does not end must be cancelled first, or
// the flush would use up all its time.
TEST_F(ServerRunnerTest, DrainTimeoutCancelsRunningCalls) {
  Start();
  service_.wait_for_cancel = true;
  grpc::Status running;
  v1::StatsResponse response;
  std::thread caller([&] { running = Stats(&response); });
  service_.entered.WaitForNotification();
  int running_at_flush = -1;
  const int cut_off = runner_->Drain(absl::ZeroDuration(),
                                     [&](absl::Time) { running_at_flush = admission_.running(); });
  caller.join();
  EXPECT_EQ(cut_off, 1);
  EXPECT_EQ(running_at_flush, 0);
  EXPECT_FALSE(running.ok());
}

TEST(WriteFileWhole, ReplacesWholeFile) {
  const TestFolder folder;
  const std::string path = folder.File("address");
  ASSERT_TRUE(WriteFileWhole(path, "127.0.0.1:1").ok());
  ASSERT_TRUE(WriteFileWhole(path, "127.0.0.1:22").ok());
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "127.0.0.1:22");
}

TEST(WriteFileWhole, TemporaryLinkIsNotFollowed) {
  const TestFolder folder;
  const std::string path = folder.File("address"), kept = folder.Write("kept", "kept");
  const std::string temporary = absl::StrCat(path, ".", ::getpid(), ".tmp");
  ASSERT_EQ(::symlink(kept.c_str(), temporary.c_str()), 0);
  ASSERT_TRUE(WriteFileWhole(path, "127.0.0.1:1").ok());
  EXPECT_EQ(folder.Read("kept"), "kept");
  EXPECT_EQ(folder.Read("address"), "127.0.0.1:1\n");
  EXPECT_EQ(folder.Files(), 2u);
}

TEST(WriteFileWhole, ErrorNamesUnwritablePath) {
  const absl::Status status = WriteFileWhole("/no/such/folder/file", "x");
  EXPECT_TRUE(absl::StrContains(status.message(), "/no/such/folder/file")) << status;
}

}  // namespace
}  // namespace hearth
