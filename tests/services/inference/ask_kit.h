// What tests of Ask ask, and what they read.
//
// Thread safety: functions.
#ifndef HEARTH_TESTS_SERVICES_INFERENCE_ASK_KIT_H_
#define HEARTH_TESTS_SERVICES_INFERENCE_ASK_KIT_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/store/small_layout.h"

namespace hearth {

inline constexpr uint32_t kContextTokens = 40;  // of IdsAsk
inline constexpr uint32_t kAskedTokens = 3;     // new ones, of each answer

struct Asked {
  grpc::Status status;
  std::vector<v1::AskContext> contexts;
  std::vector<v1::Answer> answers;  // as they came
  bool context_came_first = false;
};

inline Asked ReadAnswers(grpc::ClientReader<v1::AskResponse>* reader) {
  Asked asked;
  v1::AskResponse message;
  while (reader->Read(&message)) {
    if (message.has_context()) {
      asked.context_came_first = asked.answers.empty();
      asked.contexts.push_back(message.context());
    } else {
      asked.answers.push_back(message.answer());
    }
  }
  asked.status = reader->Finish();
  return asked;
}

inline Asked Ask(WorkerServer* server, const v1::AskRequest& request) {
  grpc::ClientContext context;
  return ReadAnswers(server->stub()->Ask(&context, request).get());
}

inline std::vector<uint32_t> EndingOf(uint32_t question) {
  return {5 + question % 7, 6 + question / 7, 9};
}

inline v1::AskRequest IdsAsk(uint32_t questions, uint32_t parallel,
                             uint32_t new_tokens = kAskedTokens) {
  v1::AskRequest request;
  for (uint32_t id : CountingTokens(kContextTokens)) {
    request.mutable_context()->mutable_token_ids()->add_ids(id);
  }
  for (uint32_t i = 0; i < questions; ++i) {
    v1::Question* question = request.add_questions();
    question->set_id(absl::StrCat("q", i));
    for (uint32_t id : EndingOf(i)) question->mutable_token_ids()->add_ids(id);
  }
  request.mutable_each()->set_max_new_tokens(new_tokens);
  request.mutable_each()->set_ignore_eos(true);
  request.set_parallel(parallel);
  return request;
}

// The same question alone, by a worker that keeps and reads nothing.
inline std::vector<uint32_t> AloneAndCold(WorkerServer* server, uint32_t question) {
  std::vector<uint32_t> ids = CountingTokens(kContextTokens);
  for (uint32_t id : EndingOf(question)) ids.push_back(id);
  v1::GenerateRequest request = IdsRequest(ids, kAskedTokens);
  request.mutable_prompt()->add_breakpoints(kContextTokens);
  request.set_cache(v1::CACHE_MODE_OFF);
  return server->Generate(request).ids;
}

inline std::vector<uint32_t> IdsOf(const v1::Answer& answer) {
  return {answer.token_ids().begin(), answer.token_ids().end()};
}

inline WorkerServer::Options Pooled() {
  WorkerServer::Options options;
  options.engine.memory.pool_bytes = 64 << 20;
  return options;
}

}  // namespace hearth

#endif  // HEARTH_TESTS_SERVICES_INFERENCE_ASK_KIT_H_
