// Each kind of error of the API, through gRPC clients of a real worker and a real store. Errors
// that end a process or prevent its start are in tests/system.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "proto/snapshot_format.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/rpc/proto_conversion.h"
#include "tests/services/inference/scripted_store.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/services/store/small_layout.h"
#include "tests/services/store/store_server.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

struct StoreWorker {
  explicit StoreWorker(const std::string& address,
                       WorkerServer::Options options = WorkerServer::Options())
      : server(std::move(options)) {
    cache = std::make_unique<RemotePrefixCache>(
        ConnectedTo(address), server.engine()->fingerprint(), server.engine()->layout(), &counters);
    server.SetCache(cache.get());
  }
  CacheCounters counters;
  std::unique_ptr<RemotePrefixCache> cache;  // destroyed after the engine
  WorkerServer server;
};

v1::GenerateRequest ChatRequest(const std::vector<std::string>& roles) {
  v1::GenerateRequest request;
  request.mutable_prompt()->mutable_chat();
  for (const std::string& role : roles) {
    v1::ChatMessage* message = request.mutable_prompt()->mutable_chat()->add_messages();
    message->set_role(role);
    message->add_parts()->set_text("lamp");
  }
  request.set_max_new_tokens(1);
  return request;
}

struct BadRequest {
  const char* expected;  // text that the error message must have: field and limit
  v1::GenerateRequest request;
};

v1::GenerateRequest Changed(const std::function<void(v1::GenerateRequest*)>& change) {
  v1::GenerateRequest request = IdsRequest(CountingTokens(20));
  change(&request);
  return request;
}

std::vector<BadRequest> BadRequests() {
  const auto sampling = [](const std::function<void(v1::SamplingParams*)>& change) {
    return Changed([&](auto* request) { change(request->mutable_sampling()); });
  };
  return {
      {"prompt: must have text", Changed([](auto* r) { r->clear_prompt(); })},
      {"empty", Changed([](auto* r) { r->mutable_prompt()->mutable_token_ids()->clear_ids(); })},
      {"token_ids",
       Changed([](auto* r) { r->mutable_prompt()->mutable_token_ids()->add_ids(1u << 31); })},
      {"512", IdsRequest(std::vector<uint32_t>(513, 5))},
      {"max_new_tokens", IdsRequest(CountingTokens(20), 493)},
      {"max_new_tokens", Changed([](auto* r) { r->set_max_new_tokens(0); })},
      {"max_new_tokens", Changed([](auto* r) { r->set_max_new_tokens(0xffffffff); })},
      {"breakpoints", Changed([](auto* r) { r->mutable_prompt()->add_breakpoints(21); })},
      {"breakpoints", Changed([](auto* r) { r->mutable_prompt()->add_breakpoints(0); })},
      {"temperature", sampling([](auto* s) { s->set_temperature(-1); })},
      {"temperature",
       sampling([](auto* s) { s->set_temperature(std::numeric_limits<float>::quiet_NaN()); })},
      {"top_p", sampling([](auto* s) { s->set_top_p(1.5); })},
      {"logprobs", sampling([](auto* s) { s->set_logprobs(21); })},
      {"min_p", sampling([](auto* s) { s->set_min_p(-1); })},
      {"repetition_penalty", sampling([](auto* s) { s->set_repetition_penalty(0); })},
      {"presence_penalty", sampling([](auto* s) { s->set_presence_penalty(3); })},
      {"frequency_penalty", sampling([](auto* s) { s->set_frequency_penalty(-3); })},
      {"logit_bias", sampling([](auto* s) { (*s->mutable_logit_bias())[1] = 101; })},
      {"bad_token_ids", sampling([](auto* s) { s->add_bad_token_ids(UINT32_MAX); })},
      {"prompt_logprobs", sampling([](auto* s) { s->set_prompt_logprobs(21); })},
      {"cache", Changed([](auto* r) { r->set_cache(static_cast<v1::CacheMode>(77)); })},
      {"durability", Changed([](auto* r) { r->set_durability(static_cast<v1::Durability>(77)); })},
      {"stop", Changed([](auto* r) { r->add_stop(""); })},
      {"256", Changed([](auto* r) { r->add_stop(std::string(257, 'x')); })},
      {"16", Changed([](auto* r) {
         for (int i = 0; i < 17; ++i) r->add_stop("x");
       })},
      {"3145728",
       Changed([](auto* r) { r->mutable_prompt()->set_text(std::string(3200000, 'x')); })},
      {"messages", ChatRequest({})},
      {"messages[0].role", ChatRequest({"poet"})},
      {"messages[1].role", ChatRequest({"user", "tool", "user"})},
  };
}

TEST(ErrorContract, MalformedRequestNamesFieldAndLimit) {
  WorkerServer server({});
  for (const BadRequest& bad : BadRequests()) {
    const Generation answer = server.Generate(bad.request);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << bad.expected << ": " << answer.status.error_message();
    EXPECT_TRUE(absl::StrContains(answer.status.error_message(), bad.expected))
        << bad.expected << " in: " << answer.status.error_message();
    EXPECT_TRUE(answer.messages.empty());
  }
  EXPECT_TRUE(server.Generate(IdsRequest(CountingTokens(20))).status.ok()) << "and serves on";
}

TEST(ErrorContract, TextWithoutTokenizerIsRefused) {
  WorkerServer::Options options;
  options.with_tokenizer = false;
  WorkerServer server(options);
  for (const v1::GenerateRequest& request : {TextRequest("the keeper"), ChatRequest({"user"})}) {
    const Generation answer = server.Generate(request);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_TRUE(absl::StrContains(answer.status.error_message(), "tokenizer.model"))
        << answer.status.error_message();
  }
  v1::TokenizeRequest tokenize;
  tokenize.mutable_prompt()->set_text("the keeper");
  v1::TokenizeResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(server.stub()->Tokenize(&context, tokenize, &response).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  v1::GetModelResponse model;
  grpc::ClientContext asking;
  ASSERT_TRUE(server.stub()->GetModel(&asking, v1::GetModelRequest(), &model).ok());
  EXPECT_EQ(model.why_no_tokenizer(), "DIR/tokenizer.model has a normalizer");
  const Generation ids = server.Generate(IdsRequest(CountingTokens(20)));
  EXPECT_TRUE(ids.status.ok()) << "token ids are served";
  EXPECT_EQ(ids.text, "");
}

TEST(ErrorContract, UnknownChatTemplateIsRefused) {
  WorkerServer::Options options;
  options.why_no_chats = "the model's chat template, DIR/chat_template.jinja, is unknown";
  WorkerServer server(options);
  const Generation chat = server.Generate(ChatRequest({"user"}));
  EXPECT_EQ(chat.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(chat.status.error_message(), "chat: " + options.why_no_chats);
  EXPECT_TRUE(server.Generate(TextRequest("the keeper")).status.ok());
  EXPECT_TRUE(server.Generate(IdsRequest(CountingTokens(20))).status.ok());
  v1::TokenizeRequest tokenize;
  *tokenize.mutable_prompt() = ChatRequest({"user"}).prompt();
  v1::TokenizeResponse response;
  grpc::ClientContext tokenizing, asking;
  const grpc::Status refused = server.stub()->Tokenize(&tokenizing, tokenize, &response);
  EXPECT_EQ(refused.error_message(), "chat: " + options.why_no_chats);
  v1::GetModelResponse model;
  ASSERT_TRUE(server.stub()->GetModel(&asking, v1::GetModelRequest(), &model).ok());
  EXPECT_EQ(model.why_no_chats(), options.why_no_chats);
}

TEST(ErrorContract, FullQueueHintsRetryTime) {
  WorkerServer::Options options;
  options.engine.max_running = 1;
  options.engine.max_queued = 0;
  options.geometry.context_tokens = 200000;
  WorkerServer server(options);
  grpc::ClientContext context;
  auto running = server.stub()->Generate(&context, IdsRequest(CountingTokens(20), 150000));
  v1::GenerateResponse message;
  ASSERT_TRUE(running->Read(&message));
  const Generation refused = server.Generate(IdsRequest(CountingTokens(20)));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_GT(std::atoi(refused.retry_after_ms.c_str()), 0) << refused.retry_after_ms;
  context.TryCancel();
  while (running->Read(&message)) {
  }
  running->Finish();
}

TEST(ErrorContract, StateMismatchNamesFieldAndValues) {
  StoreServer store(StoreServer::SmallStore(""));
  // In the exact class, another window would change the canary too.
  WorkerServer::Options options;
  options.engine.exactness = ExactnessChoice::kPortable;
  StoreWorker saver(store.address(), options);
  v1::GenerateRequest request = IdsRequest(CountingTokens(40));
  request.set_wait_published(true);
  ASSERT_EQ(saver.server.Generate(request).published.published_tokens(), 32u);
  v1::RestorePointInfo point;
  grpc::ClientContext list_context, fetch_context, model_context;
  ASSERT_TRUE(store.stub()->List(&list_context, {})->Read(&point));
  v1::FetchRequest fetch;
  fetch.set_restore_point_id(point.restore_point_id());
  v1::FetchResponse saved;
  ASSERT_TRUE(store.stub()->Fetch(&fetch_context, fetch)->Read(&saved));

  options.geometry.window = 40;
  WorkerServer other(options);
  v1::GetModelResponse model;
  ASSERT_TRUE(other.stub()->GetModel(&model_context, {}, &model).ok());
  SnapshotHeader header;
  header.fingerprint = *FromProto(saved.plan().state().fingerprint());
  header.layout = *header.fingerprint.Layout();
  header.manifest.fingerprint = header.fingerprint.digest();
  header.manifest.token_count = saved.plan().state().token_count();
  header.manifest.next_position = saved.plan().state().next_position();
  header.manifest.token_ids.assign(saved.plan().state().token_ids().begin(),
                                   saved.plan().state().token_ids().end());
  for (const v1::ObjectRef& ref : saved.plan().objects()) {
    header.manifest.objects.push_back(
        {*ObjectIdFromProto(ref), {ref.slice_digests().begin(), ref.slice_digests().end()}});
  }
  ASSERT_TRUE(CheckRestorable(header, header.fingerprint).ok());
  const absl::Status status = CheckRestorable(header, *FromProto(model.fingerprint()));
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  for (const char* part : {"window", "24", "40"}) {
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << part << " in: " << status;
  }
}

// Flips one byte of each occurrence of `needle` in the files below `folder`. Returns the number of
// changed bytes.
int FlipOnDisk(const std::string& folder, const std::string& needle) {
  int flipped = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    for (size_t at = bytes.find(needle); at != std::string::npos; at = bytes.find(needle, at + 1)) {
      file.clear();
      file.seekp(static_cast<std::streamoff>(at + needle.size() / 2));
      file.put(static_cast<char>(bytes[at + needle.size() / 2] ^ 1));
      ++flipped;
    }
  }
  return flipped;
}

// Drops every restore point except the first with `tokens` tokens. Then the objects of this point
// move from the write-ahead log, which each start checks, to files that only digests protect.
void DropOthers(StoreServer* store, uint32_t tokens) {
  grpc::ClientContext list_context;
  auto points = store->stub()->List(&list_context, {});
  v1::RestorePointInfo point;
  while (points->Read(&point)) {
    if (point.tokens() == tokens) continue;
    v1::DropRequest drop;
    drop.set_restore_point_id(point.restore_point_id());
    v1::DropResponse dropped;
    grpc::ClientContext context;
    ASSERT_TRUE(store->stub()->Drop(&context, drop, &dropped).ok());
  }
  ASSERT_TRUE(store->store()->Flush(absl::Now() + absl::Seconds(60)).ok());
}

// Runs `request` with a fresh store. Returns the answer. `stored` gets 64 of the stored bytes.
Generation StoreOne(const StoreOptions& options, const v1::GenerateRequest& request,
                    std::string* stored) {
  StoreServer store(options);
  StoreWorker worker(store.address());
  const Generation cold = worker.server.Generate(request);
  EXPECT_EQ(cold.published.durable(), v1::DURABILITY_DISK) << cold.published.note();
  v1::RestorePointInfo point;
  grpc::ClientContext list_context, fetch_context;
  EXPECT_TRUE(store.stub()->List(&list_context, {})->Read(&point));
  v1::FetchRequest fetch;
  fetch.set_restore_point_id(point.restore_point_id());
  auto reader = store.stub()->Fetch(&fetch_context, fetch);
  v1::FetchResponse message;
  while (reader->Read(&message) && !message.has_slice()) {
  }
  *stored = message.slice().data().substr(0, 64);
  v1::GenerateRequest other = IdsRequest(CountingTokens(300, 20));
  other.set_wait_published(true);
  EXPECT_GT(worker.server.Generate(other).published.published_tokens(), 0u);
  DropOthers(&store, point.tokens());
  return cold;
}

TEST(ErrorContract, CorruptSliceIsNeverServed) {
  const TestFolder own;
  const std::string& folder = own.path();
  StoreOptions options = StoreServer::SmallStore(folder);
  options.disk_bytes = 1 << 20;  // so that dropping half of the bytes starts a compaction
  v1::GenerateRequest request = IdsRequest(CountingTokens(40), 4);
  request.set_wait_published(true);
  std::string stored;
  const Generation cold = StoreOne(options, request, &stored);
  ASSERT_GE(FlipOnDisk(folder, stored), 1);

  StoreServer store(options);
  StoreWorker worker(store.address());
  request.set_cache(v1::CACHE_MODE_READ);
  const Generation after = worker.server.Generate(request);
  ASSERT_TRUE(after.status.ok()) << after.status.error_message();
  EXPECT_EQ(after.started.cached_tokens(), 0u);
  EXPECT_EQ(after.finished.first_logits_sha256(), cold.finished.first_logits_sha256());
  EXPECT_EQ(worker.counters.Read().fetches["corrupt"], 1u);

  v1::ExplainRequest explain;
  ToProto(worker.server.engine()->fingerprint(), explain.mutable_prefix()->mutable_fingerprint());
  for (uint32_t id : CountingTokens(40)) explain.mutable_prefix()->add_token_ids(id);
  v1::ExplainResponse explained;
  grpc::ClientContext explain_context, stats_context;
  ASSERT_TRUE(store.stub()->Explain(&explain_context, explain, &explained).ok());
  EXPECT_EQ(explained.usable_tokens(), 0u);
  EXPECT_TRUE(absl::StrContains(explained.DebugString(), "will be retried"))
      << explained.DebugString();
  v1::StatsResponse stats;
  ASSERT_TRUE(store.stub()->Stats(&stats_context, {}, &stats).ok());
  EXPECT_GE(stats.counters().at("tier_errors"), 1u);
}

TEST(ErrorContract, FullStoreDoesNotFailRequest) {
  StoreOptions options = StoreServer::SmallStore("");
  options.host_bytes = 4096;  // less than one restore point needs
  options.count_points = false;
  StoreServer store(options);
  StoreWorker worker(store.address());
  v1::GenerateRequest request = IdsRequest(CountingTokens(200), 4);
  request.set_wait_published(true);
  const Generation answer = worker.server.Generate(request);
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.ids.size(), 4u);
  EXPECT_EQ(answer.published.published_tokens(), 0u);
  EXPECT_FALSE(answer.published.note().empty());
  EXPECT_EQ(worker.counters.Read().publishes.at("full"), 1u) << answer.published.note();
}

TEST(ErrorContract, ExcessPinHintsRetryTime) {
  StoreOptions options = StoreServer::SmallStore("");
  options.max_pinned_fraction = 1e-6;
  StoreServer store(options);
  StoreWorker worker(store.address());
  v1::GenerateRequest request = IdsRequest(CountingTokens(40));
  request.set_wait_published(true);
  worker.server.Generate(request);
  v1::RestorePointInfo point;
  grpc::ClientContext list_context, pin_context;
  ASSERT_TRUE(store.stub()->List(&list_context, {})->Read(&point));
  v1::PinRequest pin;
  pin.set_restore_point_id(point.restore_point_id());
  v1::PinResponse response;
  EXPECT_EQ(store.stub()->Pin(&pin_context, pin, &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(pin_context.GetServerTrailingMetadata().count("retry-after-ms"), 1u);
}

TEST(ErrorContract, SlowStoreStaysWithinFetchBudget) {
  ScriptedStore store;
  absl::Notification release;
  store.fetch = [&](auto*, auto&, auto*) {
    release.WaitForNotification();
    return grpc::Status::OK;
  };
  store.publish = [](auto*, auto*) { return grpc::Status(grpc::StatusCode::UNAVAILABLE, "no"); };
  WorkerServer::Options options;
  options.engine.cache.fetch_budget = absl::Milliseconds(50);
  StoreWorker worker(store.address(), options);
  const Generation answer = worker.server.Generate(IdsRequest(CountingTokens(40), 4));
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.ids.size(), 4u);
  EXPECT_EQ(answer.started.cached_tokens(), 0u);
  EXPECT_GE(answer.finished.fetch_ms(), 49.0);
  release.Notify();
  store.Stop();  // stop first, because the store's call may still read `release`
}

TEST(ErrorContract, ErrorNamesLockedDataFolder) {
  const TestFolder own;
  const std::string& folder = own.path();
  StoreServer first(StoreServer::SmallStore(folder));
  auto second = TieredStore::Open(StoreServer::SmallStore(folder));
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status())) << second.status();
  EXPECT_TRUE(absl::StrContains(second.status().message(), folder)) << second.status();
}

TEST(ErrorContract, DrainingServerRefusesCalls) {
  StoreServer store(StoreServer::SmallStore(""));
  WorkerServer worker({});
  store.admission()->Close();
  worker.admission()->Close();
  v1::StatsResponse stats;
  grpc::ClientContext context;
  EXPECT_EQ(store.stub()->Stats(&context, {}, &stats).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(worker.Generate(IdsRequest(CountingTokens(20))).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace hearth
