// The answers to one caller must not reveal what other callers compute.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/rpc/call_metadata.h"
#include "services/rpc/client_access.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/services/store/small_layout.h"
#include "tests/services/store/store_server.h"
#include "tests/support/test_certificates.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kPromptTokens = 100;
constexpr uint32_t kBreakpoint = 53;

std::string EntryOf(const std::string& name, const std::string& role) {
  return absl::StrCat(R"({"name":")", name, R"(","role":")", role, R"(","token_sha256":")",
                      DigestHex(Sha256("token-" + name)), "\"}");
}

// A store, a worker with an identity for the store, and callers with identities for the worker.
class Stack {
 public:
  explicit Stack(const SecretFolder& folder, ExactnessChoice exactness = ExactnessChoice::kExact)
      : folder_(folder) {
    AccessFlags access;
    access.identities_file = folder.Write(
        "store.json", absl::StrCat(R"({"identities":[)", EntryOf("worker", "worker"), "]}"));
    StoreOptions kept = StoreServer::SmallStore("");
    // equal secrets, so that ids are equal in both stacks
    kept.secret_file = folder.Write("secret", std::string(64, 'a'));
    store_ = std::make_unique<StoreServer>(kept, access);
    Identities::Options callers;
    callers.file =
        folder.Write("callers.json", absl::StrCat(R"({"identities":[)", EntryOf("a", "tenant"), ",",
                                                  EntryOf("b", "tenant"), "]}"));
    callers_ = Identities::Open(callers).value();
    WorkerServer::Options options;
    options.engine.memory.pool_bytes = 64 << 20;  // a worker pool, which must separate tenants too
    options.identities = callers_.get();
    options.engine.exactness = exactness;
    options.engine.max_running = 4;
    options.engine.max_queued = 8;
    options.explain = [this](PrefixRequest prefix, absl::Time deadline, auto done) {
      cache_->Explain(std::move(prefix), deadline, std::move(done));
    };
    server_ = std::make_unique<WorkerServer>(options);
    cache_ = std::make_unique<RemotePrefixCache>(ChannelAs("worker", store_->address()),
                                                 server_->engine()->fingerprint(),
                                                 server_->engine()->layout(), &counters_);
    server_->SetCache(cache_.get());
  }
  ~Stack() { server_.reset(); }

  std::unique_ptr<v1::Inference::Stub> StubAs(const std::string& name) {
    return v1::Inference::NewStub(ChannelAs(name, server_->runner()->address()));
  }

 private:
  std::shared_ptr<grpc::Channel> ChannelAs(const std::string& name, const std::string& address) {
    ClientAccess access;
    access.token_file = folder_.Write("token-" + name, "token-" + name);
    return ConnectedTo(address, access);
  }

  const SecretFolder& folder_;
  std::unique_ptr<StoreServer> store_;
  std::unique_ptr<Identities> callers_;
  CacheCounters counters_;
  std::unique_ptr<RemotePrefixCache> cache_;  // destroyed after the engine
  std::unique_ptr<WorkerServer> server_;
};

v1::PromptInput TenantsPrompt() {
  v1::PromptInput prompt;
  for (uint32_t id : CountingTokens(kPromptTokens)) prompt.mutable_token_ids()->add_ids(id);
  prompt.add_breakpoints(kBreakpoint);
  return prompt;
}

// Returns the answers and the status of a call as text, without times and without paths of model
// files.
std::string Transcript(const std::string& messages, const grpc::Status& status,
                       const grpc::ClientContext& context) {
  static const std::regex kTimes("(\\w+_ms|\\w+_s|model_dir): [^\n]*|[0-9]+ ms");
  std::string told = absl::StrCat(std::regex_replace(messages, kTimes, ""), "status ",
                                  status.error_code(), " ", status.error_message());
  for (const auto& [key, value] : context.GetServerTrailingMetadata()) {
    absl::StrAppend(&told, " ", std::string(key.data(), key.size()), "=",
                    std::string(value.data(), value.size()));
  }
  return told + "\n";
}

template <typename Request, typename Response>
std::string Ask(v1::Inference::Stub* stub,
                grpc::Status (v1::Inference::Stub::*method)(grpc::ClientContext*, const Request&,
                                                            Response*),
                const Request& request) {
  grpc::ClientContext context;
  Response response;
  const grpc::Status status = (stub->*method)(&context, request, &response);
  return Transcript(response.DebugString(), status, context);
}

// Returns the messages and the status of a stream as text.
template <typename Message>
std::string StreamTranscript(grpc::ClientReader<Message>* reader,
                             const grpc::ClientContext& context) {
  std::string messages;
  Message message;
  while (reader->Read(&message)) messages += message.DebugString();
  return Transcript(messages, reader->Finish(), context);
}

std::string PrefillOf(v1::Inference::Stub* stub) {
  v1::PrefillRequest request;
  *request.mutable_prompt() = TenantsPrompt();
  grpc::ClientContext context;
  const auto reader = stub->Prefill(&context, request);
  return StreamTranscript(reader.get(), context);
}

std::string Generate(v1::Inference::Stub* stub, v1::CacheMode mode) {
  v1::GenerateRequest request;
  *request.mutable_prompt() = TenantsPrompt();
  request.set_max_new_tokens(3);
  request.set_ignore_eos(true);
  request.set_cache(mode);
  request.set_wait_published(true);
  request.set_report_writes(true);  // otherwise the end has what the store happened to send before
  grpc::ClientContext context;
  SendRequestId(absl::StrCat("generate-", mode), &context);
  const auto reader = stub->Generate(&context, request);
  return StreamTranscript(reader.get(), context);
}

// Saves the state of one of the caller's requests. Each caller has a request with the same id.
std::string Save(v1::Inference::Stub* stub) {
  v1::SaveStateRequest request;
  request.set_request_id(absl::StrCat("generate-", v1::CACHE_MODE_READ));
  grpc::ClientContext context;
  const auto reader = stub->SaveState(&context, request);
  size_t bytes = 0;
  v1::StateChunk chunk;
  while (reader->Read(&chunk)) bytes += chunk.data().size();
  const grpc::Status status = reader->Finish();
  return Transcript(absl::StrCat("bytes: ", bytes, "\n"), status, context);
}

std::string Load(v1::Inference::Stub* stub) {
  grpc::ClientContext context;
  v1::LoadStateResponse response;
  const auto writer = stub->LoadState(&context, &response);
  v1::StateChunk chunk;
  chunk.set_data("what is no state at all, and long enough to be seen");
  writer->Write(chunk);
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  return Transcript(response.DebugString(), status, context);
}

// Calls every RPC and returns all answers as text. Calls that store nothing come first; the call
// that does not wait for its publish comes last.
std::string AskEverything(v1::Inference::Stub* stub) {
  v1::ExplainInputRequest explain;
  *explain.mutable_prompt() = TenantsPrompt();
  v1::TokenizeRequest tokenize;
  *tokenize.mutable_prompt() = TenantsPrompt();
  return absl::StrCat("model: ", Ask(stub, &v1::Inference::Stub::GetModel, v1::GetModelRequest()),
                      "tokenize: ", Ask(stub, &v1::Inference::Stub::Tokenize, tokenize),
                      "explain: ", Ask(stub, &v1::Inference::Stub::Explain, explain),
                      "save: ", Save(stub), "load: ", Load(stub),
                      "read: ", Generate(stub, v1::CACHE_MODE_READ), "prefill: ", PrefillOf(stub),
                      "generate: ", Generate(stub, v1::CACHE_MODE_DEFAULT),
                      "explain: ", Ask(stub, &v1::Inference::Stub::Explain, explain));
}

TEST(InferenceTenants, OtherTenantsSeeNoComputation) {
  SecretFolder folder;
  Stack with_a(folder), without(folder);
  const auto a = with_a.StubAs("a");
  const std::string first = AskEverything(a.get());
  ASSERT_NE(first.find("published_tokens: 96"), std::string::npos) << first;
  const std::string beside = AskEverything(with_a.StubAs("b").get());
  EXPECT_EQ(beside, AskEverything(without.StubAs("b").get()));
  const std::string warm = AskEverything(a.get());
  EXPECT_NE(warm, first) << "the comparison sees a difference";
  EXPECT_NE(warm.find("cached_tokens: 96"), std::string::npos) << warm;
}

// A hundred callers of one tenant send requests again and again. The worker accepts only twelve
// requests at a time and refuses the others.
TEST(InferenceTenants, BusyTenantDoesNotBlockOthers) {
  SecretFolder folder;
  Stack stack(folder, ExactnessChoice::kInvariant);  // only this exactness class can save states
  const auto quiet = stack.StubAs("b");
  std::atomic<bool> is_over{false};
  std::atomic<int> refused{0}, served{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 100; ++i) {
    callers.emplace_back([&, loud = stack.StubAs("a")] {
      while (!is_over) {
        const bool is_served =
            absl::StrContains(Generate(loud.get(), v1::CACHE_MODE_READ), "status 0");
        ++(is_served ? served : refused);
        Save(loud.get());
        Load(loud.get());
      }
    });
  }
  while (refused < 20 || served == 0) std::this_thread::yield();
  for (int i = 0; i < 3; ++i) {
    for (const std::string& told :
         {Generate(quiet.get(), v1::CACHE_MODE_READ), Save(quiet.get()),
          Generate(quiet.get(), v1::CACHE_MODE_DEFAULT), PrefillOf(quiet.get())}) {
      EXPECT_THAT(told, HasSubstr("status 0"));
    }
    EXPECT_THAT(Load(quiet.get()), HasSubstr("status 15")) << "data loss: it was let in";
  }
  is_over = true;
  for (std::thread& caller : callers) caller.join();
}

TEST(InferenceTenants, EveryRpcIsTested) {
  const auto* service =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName("hearth.v1.Inference");
  ASSERT_NE(service, nullptr);
  std::set<std::string> all;
  for (int i = 0; i < service->method_count(); ++i) all.insert(service->method(i)->name());
  EXPECT_EQ(all, (std::set<std::string>{"Explain", "Generate", "GetModel", "LoadState", "Prefill",
                                        "SaveState", "Tokenize"}))
      << "AskEverything is to ask it too";
}

}  // namespace
}  // namespace hearth
