// A worker whose device fails: running calls and health checks get the device's error, and the
// process ends with exit code 1.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "services/inference/inference_service.h"
#include "services/openai/openai_server.h"
#include "services/serving/process.h"
#include "services/serving/server/serving.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/services/serving/http_caller.h"
#include "tests/support/late_device.h"
#include "tests/support/test_folder.h"
#include "tests/support/tiny_checkpoint.h"
#include "worker/engine/engine_impl.h"
#include "worker/engine/runner/invariant_runner.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kError[] = "device: the programs' end: an illegal memory access was encountered";

// The objects that the worker's main makes, with a device that fails on command.
struct DeviceWorker {
  DeviceWorker() {
    TinyGeometry geometry;
    geometry.bfloat16 = true;
    InvariantGemmaOptions of_model{1, 16, uint64_t{1} << 30};
    of_model.device = device;
    EngineOptions options = WorkerServer::SmallEngine();
    options.exactness = ExactnessChoice::kInvariant;
    options.on_device_failure = &StopForDevice;
    auto gemma = InvariantGemma::Load(NewTinyCheckpoint(geometry, "device_failure"), of_model);
    auto runner = std::make_unique<InvariantRunner>(*std::move(gemma), KvChoice(),
                                                    std::vector<std::string>());
    engine = std::make_unique<EngineImpl>(options, std::move(runner), "");
    if (!engine->Start().ok()) std::abort();
    GeneratorOptions generation;
    generation.why_no_tokenizer = "the test has none";
    generator = std::make_unique<Generator>(engine.get(), std::move(generation));
    service = std::make_unique<InferenceService>(generator.get(), &admission, InferenceOptions());
    OpenAiOptions http;
    http.http.listen = "127.0.0.1:0";
    http.generator = generator.get();
    http.admission = &admission;
    http.model = "tiny";
    http.failure = &DeviceFailure;
    openai = OpenAiServer::Open(std::move(http)).value();
  }

  const std::shared_ptr<LateDevice> device = std::make_shared<LateDevice>();
  std::unique_ptr<EngineImpl> engine;
  Admission admission;
  std::unique_ptr<Generator> generator;
  std::unique_ptr<InferenceService> service;
  std::unique_ptr<OpenAiServer> openai;
};

// Returns the serialized grpc.health.v1.HealthCheckResponse for the whole server.
std::string HealthOf(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  const grpc::Slice empty;
  const grpc::ByteBuffer request(&empty, 1);
  grpc::ByteBuffer response;
  absl::Notification ended;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request, &response,
                 [&](const grpc::Status&) { ended.Notify(); });
  ended.WaitForNotification();
  grpc::Slice slice;
  if (!response.Valid() || !response.DumpToSingleSlice(&slice).ok()) return "no response";
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

// Generates until the device fails at the second token. Returns the call's error.
grpc::Status GenerateUntilFailure(const std::shared_ptr<grpc::Channel>& channel,
                                  LateDevice* device) {
  const auto stub = v1::Inference::NewStub(channel);
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, IdsRequest({2, 7, 8, 9}, 100));
  v1::GenerateResponse message;
  for (int tokens = 0; reader->Read(&message);) {
    if (message.has_token() && ++tokens == 2) device->fails = true;
  }
  return reader->Finish();
}

// Serves until the device has failed, and prints what callers got. Returns the exit code of the
// worker's main.
int ServeUntilDeviceFails() {
  StoppedLine stopped;
  HandleStopSignals();
  const TestFolder folder;
  DeviceWorker worker;
  Metrics metrics("hearth_worker");
  ServerFlags flags;
  flags.listen = "unix:" + folder.File("socket");
  std::shared_ptr<grpc::Channel> channel;
  std::thread caller([&] {
    channel = ConnectedTo(flags.listen);
    const grpc::Status status = GenerateUntilFailure(channel, worker.device.get());
    std::fprintf(stderr, "call: %d %s\n", status.error_code(), status.error_message().c_str());
    if (!worker.device->fails) std::_Exit(2);  // the call ended too early
  });
  const auto flush = [&](absl::Time deadline) {
    caller.join();
    std::fprintf(stderr, "not serving: %d\n", HealthOf(channel) == "\x08\x02");
    HttpCaller http(worker.openai->address());
    http.Say("GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n");
    std::fprintf(stderr, "health: %s\n", http.HearAll().c_str());
    worker.engine->Drain(deadline);
  };
  const absl::StatusOr<int> served =
      Serve(flags, {{"hearth.v1.Inference", worker.service.get()}}, &worker.admission, &metrics,
            ServerAccess(), flush, &stopped, [&] { worker.openai->Drain(); });
  return served.value();
}

TEST(DeviceFailureDeathTest, WorkerReportsFailureAndEnds) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      std::exit(ServeUntilDeviceFails()), testing::ExitedWithCode(1),
      AllOf(HasSubstr(std::string("call: 13 ") + kError), HasSubstr("not serving: 1\n"),
            HasSubstr("health: HTTP/1.1 503"), HasSubstr(std::string("\"message\":\"") + kError),
            HasSubstr("error the device failed; the process ends, because only a restart resets "
                      "it"),
            HasSubstr("reason=\"device: the programs"), HasSubstr("draining running_calls="),
            HasSubstr("info stopped")));
}

}  // namespace
}  // namespace hearth
