#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/inference/calls/ask_plan.h"
#include "services/inference/calls/question_line.h"
#include "tests/services/inference/ask_kit.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/serving/blocked_pool.h"
#include "tests/services/store/small_layout.h"

namespace hearth {
namespace {

TEST(Ask, OneAfterTheOtherKeepsTheOrderAndReadsTheContextFromTheCache) {
  WorkerServer server(Pooled());
  const Asked asked = Ask(&server, IdsAsk(5, 1));
  ASSERT_TRUE(asked.status.ok()) << asked.status.error_message();
  ASSERT_EQ(asked.contexts.size(), 1u);
  EXPECT_TRUE(asked.context_came_first);
  EXPECT_EQ(asked.contexts[0].tokens(), kContextTokens);
  EXPECT_EQ(asked.contexts[0].cached_tokens(), 0u);
  EXPECT_EQ(asked.contexts[0].computed_tokens(), kContextTokens);
  ASSERT_EQ(asked.answers.size(), 5u);
  for (uint32_t i = 0; i < 5; ++i) {
    const v1::Answer& answer = asked.answers[i];
    EXPECT_EQ(answer.question(), i);
    EXPECT_EQ(answer.id(), absl::StrCat("q", i));
    EXPECT_EQ(answer.error(), "");
    EXPECT_EQ(answer.started().prompt_tokens(), kContextTokens + 3);
    EXPECT_EQ(answer.started().cached_tokens(), kContextTokens);
    EXPECT_EQ(answer.finished().computed_tokens(), 3u);
    EXPECT_GT(answer.finished().ttft_ms(), 0.0);
    EXPECT_EQ(IdsOf(answer), AloneAndCold(&server, i));
  }
  const Asked again = Ask(&server, IdsAsk(1, 1));
  ASSERT_EQ(again.contexts.size(), 1u);
  EXPECT_EQ(again.contexts[0].cached_tokens(), kContextTokens);
  EXPECT_EQ(again.contexts[0].computed_tokens(), 0u);
}

TEST(Ask, SideBySideEachQuestionHasItsOwnAnswerOnce) {
  WorkerServer server(Pooled());
  const Asked asked = Ask(&server, IdsAsk(30, 8));
  ASSERT_TRUE(asked.status.ok()) << asked.status.error_message();
  std::map<uint32_t, std::vector<uint32_t>> answers;
  for (const v1::Answer& answer : asked.answers) answers[answer.question()] = IdsOf(answer);
  EXPECT_EQ(asked.answers.size(), 30u);
  ASSERT_EQ(answers.size(), 30u);
  for (const uint32_t i : {0u, 7u, 11u, 29u}) EXPECT_EQ(answers[i], AloneAndCold(&server, i)) << i;
}

TEST(Ask, ATextGoesOnWhereTheContextEndsAndAChatWithTheUsersMessage) {
  WorkerServer server(Pooled());
  v1::AskRequest request;
  request.mutable_context()->set_text("the keeper of the light counts ships");
  request.add_questions()->set_text(" and the keeper");
  request.mutable_each()->set_max_new_tokens(4);
  request.mutable_each()->set_ignore_eos(true);
  const Asked text = Ask(&server, request);
  ASSERT_EQ(text.answers.size(), 1u) << text.status.error_message();
  v1::GenerateRequest alone = TextRequest("the keeper of the light counts ships and the keeper", 4);
  alone.mutable_prompt()->add_breakpoints(36);
  alone.set_cache(v1::CACHE_MODE_OFF);
  const Generation cold = server.Generate(alone);
  EXPECT_EQ(text.answers[0].text(), cold.text);
  EXPECT_EQ(IdsOf(text.answers[0]), cold.ids);
  EXPECT_EQ(text.answers[0].started().prompt_tokens(), cold.started.prompt_tokens());
  EXPECT_EQ(text.answers[0].started().cached_tokens(), text.contexts.at(0).tokens());
}

void AddMessage(const std::string& role, const std::string& text, v1::Chat* chat) {
  v1::ChatMessage* message = chat->add_messages();
  message->set_role(role);
  message->add_parts()->set_text(text);
}

// By the template: a question after the context is the prompt that the whole chat makes.
TEST(Ask, AChatIsAskedByItsTemplate) {
  WorkerServer server(Pooled());
  v1::AskRequest request;
  v1::Chat* context = request.mutable_context()->mutable_chat();
  AddMessage("user", "the keeper of the light", context);
  AddMessage("model", "counts the ships", context);
  const std::vector<std::string> questions = {"and the keeper", "the light of the ships"};
  for (const std::string& question : questions) request.add_questions()->set_text(question);
  request.mutable_each()->set_max_new_tokens(4);
  request.mutable_each()->set_ignore_eos(true);
  request.set_parallel(1);
  const Asked asked = Ask(&server, request);
  ASSERT_EQ(asked.answers.size(), 2u) << asked.status.error_message();
  ASSERT_EQ(asked.contexts.size(), 1u);
  for (const v1::Answer& answer : asked.answers) {
    v1::GenerateRequest alone;
    alone.set_max_new_tokens(4);
    alone.set_ignore_eos(true);
    alone.set_cache(v1::CACHE_MODE_OFF);
    v1::Chat* chat = alone.mutable_prompt()->mutable_chat();
    *chat = request.context().chat();
    chat->mutable_messages(1)->mutable_parts(0)->set_cache_breakpoint(true);
    AddMessage("user", questions[answer.question()], chat);
    const Generation cold = server.Generate(alone);
    ASSERT_TRUE(cold.status.ok()) << cold.status.error_message();
    EXPECT_EQ(answer.started().prompt_tokens(), cold.started.prompt_tokens());
    EXPECT_EQ(IdsOf(answer), cold.ids);
    EXPECT_EQ(answer.text(), cold.text);
    EXPECT_EQ(answer.started().cached_tokens(), asked.contexts[0].tokens());
    EXPECT_GT(answer.started().cached_tokens(), 0u);
  }
}

TEST(Ask, AChatsQuestionIsTheUsersNextMessage) {
  AskPlan plan;
  v1::ChatMessage* system = plan.request.mutable_context()->mutable_chat()->add_messages();
  system->set_role("system");
  system->add_parts()->set_text("You are brief.");
  plan.request.add_questions()->set_text("Who?");
  const v1::PromptInput first = plan.PromptOf(0).value();
  ASSERT_EQ(first.chat().messages_size(), 2);
  EXPECT_TRUE(first.chat().messages(0).parts(0).cache_breakpoint());
  EXPECT_EQ(first.chat().messages(1).role(), "user");
  EXPECT_EQ(first.chat().messages(1).parts(0).text(), "Who?");
  // The user's last message goes on.
  *plan.request.mutable_context() = first;
  const v1::PromptInput longer = plan.PromptOf(0).value();
  ASSERT_EQ(longer.chat().messages_size(), 2);
  EXPECT_EQ(longer.chat().messages(1).parts_size(), 2);
  EXPECT_TRUE(longer.chat().messages(1).parts(0).cache_breakpoint());
}

TEST(Ask, WhatIsWrongWithOneQuestionIsItsAnswersError) {
  WorkerServer server(Pooled());
  v1::AskRequest request = IdsAsk(4, 2);
  request.mutable_questions(0)->set_text("a text");
  request.mutable_questions(2)->mutable_token_ids()->set_ids(1, 4000000);
  const Asked asked = Ask(&server, request);
  ASSERT_TRUE(asked.status.ok()) << asked.status.error_message();
  ASSERT_EQ(asked.answers.size(), 4u);
  std::map<std::string, v1::Answer> answers;
  for (const v1::Answer& answer : asked.answers) answers[answer.id()] = answer;
  EXPECT_EQ(answers["q0"].error_code(), uint32_t{grpc::StatusCode::INVALID_ARGUMENT});
  EXPECT_TRUE(absl::StrContains(answers["q0"].error(), "the context has token_ids"));
  EXPECT_TRUE(absl::StrContains(answers["q2"].error(), "4000000")) << answers["q2"].error();
  EXPECT_EQ(IdsOf(answers["q1"]), AloneAndCold(&server, 1));
  EXPECT_EQ(IdsOf(answers["q3"]), AloneAndCold(&server, 3));
}

TEST(Ask, RefusesWhatNoQuestionCouldBeAnsweredWith) {
  WorkerServer server({});
  const std::vector<std::pair<std::string, std::function<void(v1::AskRequest*)>>> wrongs = {
      {"context: none", [](v1::AskRequest* ask) { ask->clear_context(); }},
      {"context: prompt: token_ids[3]",
       [](v1::AskRequest* ask) {
         ask->mutable_context()->mutable_token_ids()->set_ids(3, 4000000);
       }},
      {"questions: 0;", [](v1::AskRequest* ask) { ask->clear_questions(); }},
      {"questions: 1025; 1 to 1024",
       [](v1::AskRequest* ask) {
         while (ask->questions_size() <= kMaxQuestions) ask->add_questions()->set_text("x");
       }},
      {"questions[1].ending", [](v1::AskRequest* ask) { ask->add_questions(); }},
      {"questions[0].id: 257 bytes",
       [](v1::AskRequest* ask) { ask->mutable_questions(0)->set_id(std::string(257, 'x')); }},
      {"parallel: 65; the limit is 64", [](v1::AskRequest* ask) { ask->set_parallel(65); }},
      {"each.max_new_tokens: 0",
       [](v1::AskRequest* ask) { ask->mutable_each()->clear_max_new_tokens(); }},
      {"each.n", [](v1::AskRequest* ask) { ask->mutable_each()->set_n(2); }},
      {"each.prompt", [](v1::AskRequest* ask) { ask->mutable_each()->mutable_prompt(); }},
      {"each.logprobs",
       [](v1::AskRequest* ask) { ask->mutable_each()->mutable_sampling()->set_logprobs(2); }},
      {"each.hash_logits", [](v1::AskRequest* ask) { ask->mutable_each()->set_hash_logits(true); }},
      {"each.wait_published",
       [](v1::AskRequest* ask) { ask->mutable_each()->set_wait_published(true); }}};
  for (const auto& [message, spoil] : wrongs) {
    v1::AskRequest request = IdsAsk(1, 1);
    spoil(&request);
    const Asked asked = Ask(&server, request);
    EXPECT_EQ(asked.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << message;
    EXPECT_TRUE(absl::StrContains(asked.status.error_message(), message))
        << asked.status.error_message() << " is not " << message;
    EXPECT_TRUE(asked.answers.empty());
  }
}

TEST(Ask, CacheModesSayWhetherTheContextIsComputedAhead) {
  WorkerServer server(Pooled());
  v1::AskRequest request = IdsAsk(2, 1);
  for (const v1::CacheMode mode : {v1::CACHE_MODE_READ, v1::CACHE_MODE_OFF}) {
    request.mutable_each()->set_cache(mode);
    const Asked asked = Ask(&server, request);
    EXPECT_TRUE(asked.contexts.empty());
    ASSERT_EQ(asked.answers.size(), 2u) << asked.status.error_message();
    for (const v1::Answer& answer : asked.answers) EXPECT_EQ(answer.started().cached_tokens(), 0u);
  }
  request.mutable_each()->set_cache(v1::CACHE_MODE_DEFAULT);
  EXPECT_EQ(Ask(&server, request).answers.at(1).started().cached_tokens(), kContextTokens);
  request.mutable_each()->set_cache(v1::CACHE_MODE_READ);
  EXPECT_EQ(Ask(&server, request).answers.at(1).started().cached_tokens(), kContextTokens);
}

TEST(Ask, AFullWorkerHasTheRestWait) {
  WorkerServer::Options options = Pooled();
  options.engine.max_running = 1;
  options.engine.max_queued = 1;
  WorkerServer server(options);
  const Asked asked = Ask(&server, IdsAsk(24, 16));
  ASSERT_TRUE(asked.status.ok()) << asked.status.error_message();
  ASSERT_EQ(asked.answers.size(), 24u);
  for (const v1::Answer& answer : asked.answers) EXPECT_EQ(answer.error(), "") << answer.id();
}

TEST(Ask, AQuestionThatGivesWayToAnotherTenantWaitsAgain) {
  WorkerServer::Options options = Pooled();
  options.engine.max_running = 1;
  options.engine.max_queued = 1;
  WorkerServer server(options);
  grpc::ClientContext context;
  const auto reader = server.stub()->Ask(&context, IdsAsk(24, 16));
  EngineRequest other;
  for (const uint32_t id : CountingTokens(20)) other.token_ids.push_back(static_cast<int32_t>(id));
  other.max_new_tokens = 1;
  other.tenant = "other";
  uint32_t answers = 0;
  for (v1::AskResponse message; reader->Read(&message);) {
    if (message.has_answer()) {
      EXPECT_EQ(message.answer().error(), "") << ++answers;
    }
    server.engine()->Submit(other, {}).IgnoreError();  // one of its own may wait already
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST(QuestionLine, OneThatFoundNoPlaceComesAgainWhenAnotherEnds) {
  QuestionLine line(3, 2);
  EXPECT_EQ(line.Take(), 0u);
  EXPECT_EQ(line.Take(), 1u);
  EXPECT_EQ(line.Take(), std::nullopt) << "two are under way";
  EXPECT_TRUE(line.PutBack(1));
  EXPECT_EQ(line.Take(), std::nullopt) << "it would find no place again";
  line.NoteAnswered();
  EXPECT_EQ(line.Take(), 1u);
  EXPECT_EQ(line.Take(), 2u) << "one more with each that ends";
  line.NoteAnswered();
  EXPECT_FALSE(line.done());
  line.NoteAnswered();
  EXPECT_TRUE(line.done());
}

TEST(QuestionLine, OneThatFoundNoPlaceWhileTheLastOtherEndedComesAgain) {
  QuestionLine line(2, 2);
  EXPECT_EQ(line.Take(), 0u);
  EXPECT_EQ(line.Take(), 1u);
  line.NoteAnswered();
  EXPECT_TRUE(line.PutBack(1)) << "the other one's place is free now";
  EXPECT_EQ(line.Take(), 1u);
  EXPECT_FALSE(line.PutBack(1)) << "no place came since";
}

TEST(QuestionLine, EndsWhereNothingCouldMakeAPlace) {
  QuestionLine line(2, 2);
  EXPECT_EQ(line.Take(), 0u);
  EXPECT_FALSE(line.PutBack(0));
  EXPECT_FALSE(line.done());
  line.Stop();
  EXPECT_EQ(line.Take(), std::nullopt);
  EXPECT_TRUE(line.done());
}

WorkerServer::Options WithLongAnswers() {
  WorkerServer::Options options = Pooled();
  options.geometry.context_tokens = 200000;
  options.geometry.layer_types = "l";  // a stand-in's steps that do not grow with the context
  options.geometry.window = 2;
  return options;
}

TEST(Ask, ACallerWhoHangsUpCancelsAllQuestions) {
  WorkerServer::Options options = WithLongAnswers();
  options.engine.max_running = 2;
  options.engine.max_queued = 1;
  WorkerServer server(options);
  {
    grpc::ClientContext context;
    const auto reader = server.stub()->Ask(&context, IdsAsk(100, 2, 150000));
    v1::AskResponse message;
    ASSERT_TRUE(reader->Read(&message));
    EXPECT_TRUE(message.has_context());
    context.TryCancel();
    EXPECT_EQ(ReadAnswers(reader.get()).status.error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(server.admission()->WaitIdle(absl::InfiniteFuture()));
  // The places are free within a step: a refusal can only be seen until then.
  Generation next;
  do {
    next = server.Generate(IdsRequest(CountingTokens(20)));
  } while (next.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(next.status.ok()) << next.status.error_message();
}

TEST(Ask, ADrainingWorkerAnswersWhatHasBegunAndNoMore) {
  WorkerServer server(Pooled());
  grpc::ClientContext context;
  const auto reader = server.stub()->Ask(&context, IdsAsk(1000, 2, 50));
  v1::AskResponse message;
  ASSERT_TRUE(reader->Read(&message));
  server.engine()->Drain(absl::InfiniteFuture());
  const Asked asked = ReadAnswers(reader.get());
  EXPECT_EQ(asked.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_LT(asked.answers.size(), 1000u);
  for (const v1::Answer& answer : asked.answers) {
    EXPECT_EQ(answer.token_ids_size(), 50) << answer.error();
  }
}

TEST(Ask, NoMoreCallsThanTheLimitAreOpen) {
  constexpr int kCalls = 16;
  WorkerServer server(Pooled());
  BlockedPool blocked(server.service()->prompts());
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::AskResponse>>> readers;
  for (int i = 0; i < kCalls; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(server.stub()->Ask(contexts.back().get(), IdsAsk(2, 1)));
  }
  while (server.service()->prompts()->waiting() < kCalls) std::this_thread::yield();
  const Asked refused = Ask(&server, IdsAsk(2, 1));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(absl::StrContains(refused.status.error_message(), "ask: 16 streams are open"))
      << refused.status.error_message();
  blocked.LetGo();
  for (const auto& reader : readers) EXPECT_EQ(ReadAnswers(reader.get()).answers.size(), 2u);
  EXPECT_TRUE(Ask(&server, IdsAsk(2, 1)).status.ok());
}

}  // namespace
}  // namespace hearth
