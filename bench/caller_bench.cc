// Measures the calls of a well-behaved client. bench/attack.py runs it during attacks.
//
//   caller_bench store|worker ADDRESS CALLS PAUSE_MS [KEY=VALUE...]
//     first=N     number of the first prompt; each number gives different tokens
//     mib=N       MiB of keys and values per prompt; 0, the default: 64 KiB in one slice
//     pins=yes    store: publishes and pins everything it has, repeatedly
//     threads=N   worker: threads that each generate a token, repeatedly, without end
//     token=FILE  ca=FILE  the access token; use TLS, with this certificate authority (PEM)
//
// Store: health, a publish of a prompt, a fetch of the prompt. Worker: health, tokenizing a short
// text, and every tenth turn generating a token. Prints the milliseconds of each call as JSON, and
// the number of failures.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "bench/bench_kit.h"
#include "proto/cache_store.grpc.pb.h"
#include "proto/inference.grpc.pb.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/rpc/transport_options.h"

namespace hearth {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(10);
constexpr uint32_t kChunk = 128;

// Makes call number `number`. Returns the error; "": success.
using Call = std::function<std::string(int number)>;
struct Kind {
  std::string name;
  Call call;
  std::vector<double> milliseconds;
  int every = 1;  // the call runs in each `every`th repetition
};

std::string WhyNot(const grpc::Status& status) {
  return status.ok() ? "" : absl::StrCat(status.error_code(), " ", status.error_message());
}

template <typename Context>
void SetDeadline(Context* context) {
  context->set_deadline(absl::ToChronoTime(absl::Now() + kCallTimeout));
}

std::string AskHealth(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  SetDeadline(&context);
  const grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer response;
  absl::Notification answered;
  std::string why;
  grpc::GenericStub(channel).UnaryCall(&context, "/grpc.health.v1.Health/Check",
                                       grpc::StubOptions(), &request, &response,
                                       [&](const grpc::Status& status) {
                                         why = WhyNot(status);
                                         answered.Notify();
                                       });
  answered.WaitForNotification();
  return why;
}

class StoreCaller {
 public:
  StoreCaller(const std::shared_ptr<grpc::Channel>& channel, int mib)
      : fingerprint_(mib > 0 ? BenchFingerprint(mib) : BenchModel("g", 1, 64)),
        layout_(*fingerprint_.Layout()),
        cache_(channel, fingerprint_, layout_, &counters_, /*shared_memory=*/false),
        spec_(BenchSpec(layout_, 0, kChunk)) {
    spec_.durability = Durability::kMemory;
  }
  std::string Publish(int number) {
    spec_.prefix = BenchPrefix(number, kChunk);
    spec_.prefix.tenant.clear();
    const PublishOutcome outcome = cache_.Publish(spec_, kCallTimeout);
    return outcome.published_tokens == kChunk ? "" : "publish: " + outcome.note;
  }
  std::string Fetch(int number) {
    PrefixRequest wanted = BenchPrefix(number, kChunk);
    wanted.tenant.clear();
    wanted.token_ids.push_back(7);
    const FetchOutcome outcome = cache_.Fetch(wanted, 0, kChunk, kCallTimeout);
    return outcome.usable_tokens == kChunk ? "" : "fetch: " + outcome.note;
  }

 private:
  CacheCounters counters_;
  const Fingerprint fingerprint_;
  const KvLayout layout_;
  RemotePrefixCache cache_;
  PublishRequestSpec spec_;
};

// Pins all restore points of the caller's tenant. Returns the error; "": success.
std::string PinAll(const std::shared_ptr<grpc::Channel>& channel) {
  const auto stub = v1::CacheStore::NewStub(channel);
  grpc::ClientContext context;
  SetDeadline(&context);
  const auto reader = stub->List(&context, v1::ListRequest());
  std::vector<std::string> ids;
  v1::RestorePointInfo point;
  while (reader->Read(&point)) {
    if (!point.pinned()) ids.push_back(point.restore_point_id());
  }
  std::string why = WhyNot(reader->Finish());
  for (const std::string& id : ids) {
    grpc::ClientContext pinning;
    SetDeadline(&pinning);
    v1::PinRequest request;
    request.set_restore_point_id(id);
    v1::PinResponse response;
    const std::string refused = WhyNot(stub->Pin(&pinning, request, &response));
    if (!refused.empty()) why = "pin: " + refused;
  }
  return why;
}

std::string Tokenize(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::TokenizeRequest request;
  request.mutable_prompt()->set_text("Water boils at");
  v1::TokenizeResponse response;
  return WhyNot(v1::Inference::NewStub(channel)->Tokenize(&context, request, &response));
}

std::string Generate(const std::shared_ptr<grpc::Channel>& channel, int number) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::GenerateRequest request;
  for (int i = 0; i < 16; ++i) {
    request.mutable_prompt()->mutable_token_ids()->add_ids(3 + (number * 16 + i) % 150);
  }
  request.set_max_new_tokens(1);
  request.set_cache(v1::CACHE_MODE_OFF);
  request.set_ignore_eos(true);
  const auto reader = v1::Inference::NewStub(channel)->Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  return WhyNot(reader->Finish());
}

// Runs `threads` threads that each send Generate requests one after another, whether the worker
// answers or refuses. Never returns.
void GenerateForEver(const std::shared_ptr<grpc::Channel>& channel, int threads, int first) {
  std::vector<std::thread> busy;
  for (int i = 0; i < threads; ++i) {
    busy.emplace_back([&channel, number = first + i]() mutable {
      for (;; number += 1000) Generate(channel, number);
    });
  }
  for (std::thread& each : busy) each.join();
}

int Run(std::vector<Kind> kinds, int first, int calls, absl::Duration pause) {
  int failed = 0;
  std::string why;
  // The first call also establishes the connection, so it is reported separately.
  double first_ms = 0;
  for (int i = 0; i <= calls; ++i) {
    for (Kind& kind : kinds) {
      if (i % kind.every != 0) continue;
      const absl::Time begin = absl::Now();
      const std::string error = kind.call(first + i);
      const double took = absl::ToDoubleMilliseconds(absl::Now() - begin);
      if (i > 0) {
        kind.milliseconds.push_back(took);
      } else {
        first_ms += took;
      }
      if (error.empty()) continue;
      ++failed;
      why = error;
    }
    absl::SleepFor(pause);
  }
  for (char& c : why) {
    if (c == '"' || c == '\\' || c == '\n') c = ' ';
  }
  std::string out = absl::StrFormat("{\"failed\": %d, \"why\": \"%s\", \"first_ms\": %.2f", failed,
                                    why, first_ms);
  for (const Kind& kind : kinds) {
    const auto add = [](std::string* to, double ms) { absl::StrAppendFormat(to, "%.3f", ms); };
    absl::StrAppend(&out, ", \"", kind.name, "\": [", absl::StrJoin(kind.milliseconds, ", ", add),
                    "]");
  }
  std::printf("%s}\n", out.c_str());
  return 0;
}

int Main(int argc, char** argv) {
  const std::string what = argc > 4 ? argv[1] : "";
  std::map<std::string, std::string> more;
  for (int i = 5; i < argc; ++i) {
    const std::string word = argv[i];
    more[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  }
  ClientAccess access;
  access.token_file = more["token"];
  access.tls_ca = more["ca"];
  const auto channel = what.empty() ? absl::InvalidArgumentError("usage: see caller_bench.cc")
                                    : ConnectToStore(argv[2], access);
  if (!channel.ok()) {
    std::fprintf(stderr, "caller_bench: %s\n", std::string(channel.status().message()).c_str());
    return 2;
  }
  if (const int threads = std::atoi(more["threads"].c_str()); threads > 0) {
    GenerateForEver(*channel, threads, std::atoi(more["first"].c_str()));
  }
  StoreCaller store(*channel, std::atoi(more["mib"].c_str()));
  std::vector<Kind> kinds = {{"health", [&](int) { return AskHealth(*channel); }, {}}};
  if (what == "store" && !more["pins"].empty()) {
    kinds = {{"publish", [&](int number) { return store.Publish(number); }, {}},
             {"pin", [&](int) { return PinAll(*channel); }, {}}};
  } else if (what == "store") {
    kinds.push_back({"publish", [&](int number) { return store.Publish(number); }, {}});
    kinds.push_back({"fetch", [&](int number) { return store.Fetch(number); }, {}});
  } else {
    kinds.push_back({"tokenize", [&](int) { return Tokenize(*channel); }, {}});
    // Generate runs in each tenth repetition, because one token takes as long as a hundred calls of
    // a store.
    kinds.push_back({"generate", [&](int number) { return Generate(*channel, number); }, {}, 10});
  }
  return Run(std::move(kinds), std::atoi(more["first"].c_str()), std::atoi(argv[3]),
             absl::Milliseconds(std::atoi(argv[4])));
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
