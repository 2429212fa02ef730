#include "services/inference/inference_service.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "proto/error_details.pb.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/store/small_layout.h"

namespace hearth {
namespace {

std::vector<uint32_t> Ids(uint32_t tokens) { return CountingTokens(tokens); }

TEST(InferenceService, StreamsStartedThenTokensThenFinished) {
  WorkerServer server({});
  const Generation generation = server.Generate(IdsRequest(Ids(20), 5));
  ASSERT_TRUE(generation.status.ok()) << generation.status.error_message();
  ASSERT_GE(generation.messages.size(), 7u);
  EXPECT_TRUE(generation.messages.front().has_started());
  for (size_t i = 1; i + 1 < generation.messages.size(); ++i) {
    EXPECT_TRUE(generation.messages[i].has_token()) << i;
  }
  EXPECT_TRUE(generation.messages.back().has_finished());
  EXPECT_EQ(generation.ids.size(), 5u);
  EXPECT_EQ(generation.started.prompt_tokens(), 20u);
  EXPECT_EQ(generation.started.cached_tokens(), 0u);
  EXPECT_EQ(generation.finished.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(generation.finished.generated_tokens(), 5u);
  EXPECT_EQ(generation.finished.prompt_tokens(), 20u);
  EXPECT_EQ(generation.finished.first_logits_sha256().size(), 32u);
  EXPECT_GT(generation.finished.ttft_ms(), 0.0);
  EXPECT_GE(generation.finished.total_ms(), generation.finished.ttft_ms());
}

TEST(InferenceService, KvCacheStrategyIsReportedAndChecked) {
  WorkerServer server({});
  v1::GenerateRequest request = IdsRequest(Ids(20), 2);
  EXPECT_EQ(server.Generate(request).finished.kv_cache(), "dynamic");
  const auto refused = [&](const char* cache, const char* quantization) {
    request.set_kv_cache(cache);
    request.set_kv_quantization(quantization);
    const grpc::Status status = server.Generate(request).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_TRUE(absl::StrContains(refused("paged", ""), "kv_cache: must be one of dynamic"));
  EXPECT_TRUE(absl::StrContains(refused("static", ""), "needs exactness invariant"));
  EXPECT_TRUE(absl::StrContains(refused("", "bits=4"), "kv_quantization"));
}

TEST(InferenceService, SpeculationGivesSameTokensFewerSteps) {
  WorkerServer::Options options;
  options.engine.exactness = ExactnessChoice::kInvariant;
  WorkerServer server(std::move(options));
  std::vector<uint32_t> ids;
  for (uint32_t i = 0; i < 60; ++i) ids.push_back(3 + i % 11);
  v1::GenerateRequest request = IdsRequest(ids, 80);
  const Generation guessed = server.Generate(request);
  request.set_speculate(0);
  const Generation plain = server.Generate(request);
  EXPECT_EQ(guessed.ids, plain.ids);
  EXPECT_EQ(plain.finished.decode_steps(), 79u);
  EXPECT_EQ(plain.finished.drafted_tokens(), 0u);
  EXPECT_LT(guessed.finished.decode_steps(), 60u);
  EXPECT_EQ(guessed.finished.decode_steps() + guessed.finished.accepted_tokens(), 79u);
  EXPECT_GE(guessed.finished.drafted_tokens(), guessed.finished.accepted_tokens());
  request.set_speculate(16);
  const grpc::Status status = server.Generate(request).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(status.error_message(), "got 16")) << status.error_message();
  WorkerServer exact({});
  request.set_speculate(1);
  EXPECT_EQ(exact.Generate(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(InferenceService, PublishedPrefixIsRestored) {
  CachedWorker worker;
  v1::GenerateRequest request = IdsRequest(Ids(40));
  request.set_wait_published(true);
  request.set_hash_logits(true);
  const Generation cold = worker.server.Generate(request);
  ASSERT_TRUE(cold.messages.back().has_published()) << "published comes last";
  ASSERT_EQ(cold.finished.samples_size(), 1);
  EXPECT_EQ(cold.finished.samples(0).logits_sha256().size(), 32u);
  EXPECT_EQ(cold.published.published_tokens(), 32u) << cold.published.note();
  const Generation warm = worker.server.Generate(request);
  EXPECT_EQ(warm.started.cached_tokens(), 32u);
  EXPECT_EQ(warm.started.source_tier(), v1::TIER_HOST);
  EXPECT_EQ(warm.finished.first_logits_sha256(), cold.finished.first_logits_sha256());
  EXPECT_EQ(warm.finished.samples(0).logits_sha256(), cold.finished.samples(0).logits_sha256());
  EXPECT_EQ(warm.ids, cold.ids);
}

TEST(InferenceService, CacheModeIsObeyed) {
  CachedWorker worker;
  v1::GenerateRequest request = IdsRequest(Ids(40));
  request.set_wait_published(true);
  request.set_cache(v1::CACHE_MODE_READ);
  const Generation reading = worker.server.Generate(request);
  ASSERT_TRUE(reading.status.ok());
  EXPECT_EQ(reading.published.published_tokens(), 0u);
  EXPECT_TRUE(absl::StrContains(reading.published.note(), "does not publish"));
  request.set_cache(v1::CACHE_MODE_OFF);
  EXPECT_TRUE(worker.server.Generate(request).messages.back().has_published());
  EXPECT_TRUE(worker.cache->published().empty());
  request.set_cache(v1::CACHE_MODE_WRITE);
  EXPECT_EQ(worker.server.Generate(request).published.published_tokens(), 32u);
  EXPECT_EQ(worker.server.Generate(request).started.cached_tokens(), 0u) << "writes, never reads";
}

TEST(InferenceService, PublishNoteNamesMissingStore) {
  WorkerServer server({});
  v1::GenerateRequest request = IdsRequest(Ids(40));
  request.set_wait_published(true);
  const Generation generation = server.Generate(request);
  EXPECT_EQ(generation.published.published_tokens(), 0u);
  EXPECT_TRUE(absl::StrContains(generation.published.note(), "no store"))
      << generation.published.note();
}

TEST(InferenceService, StopStringEndsAnswer) {
  WorkerServer server({});
  const Generation whole = server.Generate(TextRequest("the keeper", 12));
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  ASSERT_GE(whole.text.size(), 6u);
  // A stop string from the middle of the answer. With the same seed, the answer is the same again.
  size_t begin = whole.text.size() / 2;
  while (begin > 0 && (static_cast<unsigned char>(whole.text[begin]) & 0xC0) == 0x80) --begin;
  v1::GenerateRequest request = TextRequest("the keeper", 12);
  size_t end = begin + 1;
  while (end < whole.text.size() && (static_cast<unsigned char>(whole.text[end]) & 0xC0) == 0x80) {
    ++end;
  }
  const std::string stop = whole.text.substr(begin, end - begin);
  request.add_stop(stop);
  const Generation stopped = server.Generate(request);
  EXPECT_EQ(stopped.finished.reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(stopped.text, whole.text.substr(0, whole.text.find(stop)));
  EXPECT_LE(stopped.ids.size(), whole.ids.size());
}

TEST(InferenceService, TokensCarrySampleIndex) {
  WorkerServer server({});
  v1::GenerateRequest request = TextRequest("the keeper", 6);
  const Generation one = server.Generate(request);
  request.set_n(3);
  const Generation three = server.Generate(request);
  ASSERT_TRUE(three.status.ok()) << three.status.error_message();
  std::map<uint32_t, std::string> texts;
  std::map<uint32_t, int> ids;
  for (const auto& message : three.messages) {
    if (!message.has_token()) continue;
    texts[message.token().sample()] += message.token().text();
    ids[message.token().sample()] += message.token().ids_size();
  }
  ASSERT_EQ(texts.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(texts[i], one.text) << "greedy, each of them: " << i;
    EXPECT_EQ(ids[i], 6);
    EXPECT_EQ(three.finished.samples(static_cast<int>(i)).generated_tokens(), 6u);
  }
  EXPECT_EQ(three.finished.generated_tokens(), 18u);
  EXPECT_EQ(one.finished.samples_size(), 1);
  for (const uint32_t n : {17u, 4000000000u}) {
    request.set_n(n);
    EXPECT_EQ(server.Generate(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
}

TEST(InferenceService, ReportsLogprobs) {
  WorkerServer server({});
  v1::GenerateRequest request = IdsRequest(Ids(20), 3);
  request.mutable_sampling()->set_logprobs(4);
  const Generation generation = server.Generate(request);
  int tokens = 0;
  for (const v1::GenerateResponse& message : generation.messages) {
    if (!message.has_token() || message.token().ids().empty()) continue;
    ++tokens;
    ASSERT_EQ(message.token().logprobs_size(), 1);
    ASSERT_EQ(message.token().top_size(), 4);
    EXPECT_EQ(message.token().logprobs(0).id(), message.token().ids(0));
    EXPECT_EQ(message.token().top(0).id(), message.token().ids(0)) << "greedy takes the likeliest";
    EXPECT_LE(message.token().top(1).logprob(), message.token().top(0).logprob());
  }
  EXPECT_EQ(tokens, 3);
}

TEST(InferenceService, CancelledCallFreesItsSlot) {
  WorkerServer::Options options;
  options.engine.max_running = 1;
  options.engine.max_queued = 0;
  options.geometry.context_tokens = 200000;
  WorkerServer server(options);
  grpc::ClientContext context;
  auto reader = server.stub()->Generate(&context, IdsRequest(Ids(20), 150000));
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  context.TryCancel();
  while (reader->Read(&message)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  // The slot is free after one step of the engine. Until then the next call may be refused.
  Generation next;
  do {
    next = server.Generate(IdsRequest(Ids(20)));
  } while (next.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(next.status.ok()) << next.status.error_message();
}

TEST(InferenceService, UnreadStreamIsEnded) {
  WorkerServer::Options options;
  options.geometry.context_tokens = 200000;
  // sliding-window layers, so that the time of a step does not grow with the context
  options.geometry.layer_types = "l";
  options.geometry.window = 2;
  WorkerServer server(options);
  // A plain gRPC channel: its window is smaller than that of Hearth's clients.
  const auto channel =
      grpc::CreateChannel(server.runner()->address(), grpc::InsecureChannelCredentials());
  const auto stub = v1::Inference::NewStub(channel);
  v1::GenerateRequest request = IdsRequest(Ids(20), 150000);
  request.mutable_sampling()->set_logprobs(20);
  grpc::ClientContext context;
  auto reader = stub->Generate(&context, request);
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  // the request ends although its caller does not read
  server.engine()->Drain(absl::InfiniteFuture());
  size_t tokens = 0;
  while (reader->Read(&message)) ++tokens;
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(absl::StrContains(status.error_message(), "does not read"));
  EXPECT_GT(tokens, 1000u) << "what waited is sent all the same";
  EXPECT_LT(tokens, 150000u);
}

TEST(InferenceService, ExpiredCallFreesItsSlot) {
  WorkerServer::Options options;
  options.geometry.context_tokens = 200000;
  WorkerServer server(options);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(100)));
  const Generation generation = server.Generate(IdsRequest(Ids(20), 150000), &context);
  EXPECT_EQ(generation.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(server.admission()->WaitIdle(absl::Now() + absl::Seconds(60)));
}

TEST(InferenceService, TokenizesTextAndChat) {
  WorkerServer server({});
  v1::TokenizeRequest request;
  request.mutable_prompt()->set_text("the keeper");
  v1::TokenizeResponse response;
  grpc::ClientContext text_context, chat_context;
  ASSERT_TRUE(server.stub()->Tokenize(&text_context, request, &response).ok());
  EXPECT_GT(response.token_ids_size(), 1);
  EXPECT_EQ(response.text(), "<bos>the keeper");
  request.Clear();
  auto* message = request.mutable_prompt()->mutable_chat()->add_messages();
  message->set_role("user");
  message->add_parts()->set_text("the keeper");
  ASSERT_TRUE(server.stub()->Tokenize(&chat_context, request, &response).ok());
  EXPECT_EQ(response.text(),
            "<bos><start_of_turn>user\nthe keeper<end_of_turn>\n<start_of_turn>model\n");
  ASSERT_EQ(response.breakpoints_size(), 1);
  EXPECT_EQ(response.breakpoints(0), static_cast<uint32_t>(response.token_ids_size()));
}

TEST(InferenceService, DescribesItsModel) {
  WorkerServer::Options options;
  options.geometry.window = 24;
  WorkerServer server(options);
  v1::GetModelResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(server.stub()->GetModel(&context, {}, &response).ok());
  EXPECT_EQ(response.chunk_tokens(), 16u);
  EXPECT_EQ(response.window(), 24u);
  EXPECT_EQ(response.context_tokens(), 512u);
  EXPECT_TRUE(response.has_tokenizer());
  EXPECT_EQ(response.version(), "test");
  EXPECT_EQ(response.exactness(), "exact");
  EXPECT_NE(response.why_not_invariant(), "");
  EXPECT_EQ(response.kv_budget_bytes(), 0u);
  EXPECT_EQ(response.weights(), "float32");
  EXPECT_EQ(response.fingerprint().digest().size(), 32u);
  EXPECT_GT(response.fingerprint().fields_size(), 8);
}

TEST(InferenceService, RefusedFieldIsInStatusDetails) {
  WorkerServer server({});
  v1::GenerateRequest request = IdsRequest({2, 3}, 1);
  request.mutable_sampling()->set_temperature(-3);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(server.Generate(request).status.error_details()));
  google::rpc::BadRequest bad;
  ASSERT_EQ(details.details_size(), 1);
  ASSERT_TRUE(details.details(0).UnpackTo(&bad));
  EXPECT_EQ(bad.field_violations(0).field(), "sampling.temperature");
  EXPECT_EQ(bad.field_violations(0).description(), "is -3; must be in [0, 100]");
}

TEST(InferenceService, DrainFinishesRunningRefusesNew) {
  WorkerServer::Options options;
  options.geometry.context_tokens = 4096;
  WorkerServer server(options);
  grpc::ClientContext context;
  auto reader = server.stub()->Generate(&context, IdsRequest(Ids(20), 300));
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  server.admission()->Close();
  EXPECT_EQ(server.Generate(IdsRequest(Ids(20))).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  int tokens = 0;
  while (reader->Read(&message)) tokens += message.has_token() && message.token().ids_size() == 1;
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(tokens, 300);
}

}  // namespace
}  // namespace hearth
