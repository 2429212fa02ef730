// How long a server takes to answer its health check while callers do their worst.
//
//   health_bench worker ADDRESS [SECONDS] | health_bench store ADDRESS [SECONDS]
//
// A phase for each kind of load: eight callers that send it without a pause, each on a connection
// of its own, while health is asked every 10 ms on another. Printed: health's median and worst in
// ms, and how many calls of the load came back how. bench/health_under_load.py starts the servers.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "proto/cache_store.grpc.pb.h"
#include "proto/inference.grpc.pb.h"
#include "services/rpc/transport_options.h"

namespace hearth {
namespace {

constexpr int kCallers = 8;
constexpr size_t kTextBytes = size_t{2} << 20;
constexpr uint32_t kTokens = 700000;

using Load = std::function<grpc::Status(const std::shared_ptr<grpc::Channel>&)>;

double AskHealth(grpc::GenericStub* stub) {
  grpc::ClientContext context;
  const grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer response;
  absl::Notification answered;
  const absl::Time begin = absl::Now();
  stub->UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request,
                  &response, [&](const grpc::Status&) { answered.Notify(); });
  answered.WaitForNotification();
  return absl::ToDoubleMilliseconds(absl::Now() - begin);
}

void RunPhase(const std::string& name, const std::string& address, int seconds, const Load& load) {
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::map<int, int> codes;
  std::vector<std::thread> callers;
  for (int i = 0; load != nullptr && i < kCallers; ++i) {
    callers.emplace_back([&] {
      const auto channel = ConnectToStore(address);
      while (!stop) {
        const grpc::Status status = load(channel);
        const std::lock_guard<std::mutex> lock(mutex);
        ++codes[status.error_code()];
      }
    });
  }
  const auto channel = ConnectToStore(address);
  grpc::GenericStub stub(channel);
  AskHealth(&stub);
  std::vector<double> times;
  const absl::Time end = absl::Now() + absl::Seconds(seconds);
  while (absl::Now() < end) {
    times.push_back(AskHealth(&stub));
    absl::SleepFor(absl::Milliseconds(10));
  }
  stop = true;
  for (std::thread& caller : callers) caller.join();
  std::sort(times.begin(), times.end());
  std::printf("%-34s health median %7.2f ms  worst %8.2f ms  of %zu; calls:", name.c_str(),
              times[times.size() / 2], times.back(), times.size());
  for (const auto& [code, count] : codes) std::printf(" code %d x %d", code, count);
  std::printf("\n");
  std::fflush(stdout);
}

std::string Repeated(const std::string& word) {
  std::string text;
  while (text.size() + word.size() <= kTextBytes) text += word;
  return text;
}

Load Tokenizing(const std::string& text) {
  v1::TokenizeRequest request;
  request.mutable_prompt()->set_text(text);
  return [request](const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    v1::TokenizeResponse response;
    return v1::Inference::NewStub(channel)->Tokenize(&context, request, &response);
  };
}

void AttackWorker(const std::string& address, int seconds) {
  RunPhase("idle", address, seconds, nullptr);
  RunPhase("2 MiB of words", address, seconds, Tokenizing(Repeated("the keeper of the lamp ")));
  RunPhase("2 MiB, one word", address, seconds, Tokenizing(Repeated("lighthousekeeper")));
  RunPhase("2 MiB of spaces", address, seconds, Tokenizing(Repeated(" ")));
  v1::PrefillRequest ids;
  for (uint32_t i = 0; i < kTokens; ++i) ids.mutable_prompt()->mutable_token_ids()->add_ids(i % 9);
  RunPhase("700,000 ids", address, seconds, [ids](const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    v1::PrefillResponse response;
    const auto reader = v1::Inference::NewStub(channel)->Prefill(&context, ids);
    while (reader->Read(&response)) {
    }
    return reader->Finish();
  });
}

v1::Prefix LongPrefix(uint32_t cuts) {
  v1::Prefix prefix;
  v1::Fingerprint* fingerprint = prefix.mutable_fingerprint();
  const auto number = [&](const char* name, uint64_t value) {
    v1::FingerprintField* field = fingerprint->add_fields();
    field->set_name(name);
    field->set_integer(value);
  };
  const auto text = [&](const char* name, const char* value) {
    v1::FingerprintField* field = fingerprint->add_fields();
    field->set_name(name);
    field->set_text(value);
  };
  for (const char* name : {"chunk_tokens", "window"}) number(name, 128);
  number("kv_heads", 1);
  number("head_dim", 64);
  number("object_layout", 1);
  text("codec", "raw");
  text("exactness", "exact");
  text("kv_dtype", "float32");
  text("layer_types", "lg");
  for (uint32_t i = 0; i < kTokens; ++i) prefix.add_token_ids(i % 100);
  for (uint32_t cut = 1; cut <= cuts; ++cut) prefix.add_cuts(cut);
  return prefix;
}

grpc::Status FetchAll(const std::shared_ptr<grpc::Channel>& channel, const v1::Prefix& prefix) {
  grpc::ClientContext context;
  v1::FetchRequest request;
  *request.mutable_prefix() = prefix;
  v1::FetchResponse response;
  const auto reader = v1::CacheStore::NewStub(channel)->Fetch(&context, request);
  while (reader->Read(&response)) {
  }
  return reader->Finish();
}

void AttackStore(const std::string& address, int seconds) {
  RunPhase("idle", address, seconds, nullptr);
  for (const uint32_t cuts : {uint32_t{0}, uint32_t{65536}, uint32_t{200000}}) {
    const v1::Prefix prefix = LongPrefix(cuts);
    RunPhase("Fetch, " + std::to_string(cuts) + " cuts", address, seconds,
             [&](const auto& channel) { return FetchAll(channel, prefix); });
    RunPhase("Explain, " + std::to_string(cuts) + " cuts", address, seconds,
             [&](const std::shared_ptr<grpc::Channel>& channel) {
               grpc::ClientContext context;
               v1::ExplainRequest request;
               *request.mutable_prefix() = prefix;
               v1::ExplainResponse response;
               return v1::CacheStore::NewStub(channel)->Explain(&context, request, &response);
             });
  }
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  const std::string what = argc > 2 ? argv[1] : "";
  const int seconds = argc > 3 ? std::atoi(argv[3]) : 10;
  if (seconds > 0 && what == "worker") {
    hearth::AttackWorker(argv[2], seconds);
  } else if (seconds > 0 && what == "store") {
    hearth::AttackStore(argv[2], seconds);
  } else {
    std::fprintf(stderr, "usage: health_bench worker|store ADDRESS [SECONDS]\n");
    return 2;
  }
  return 0;
}
