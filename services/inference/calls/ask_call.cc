#include "services/inference/calls/ask_call.h"

#include <cassert>
#include <optional>
#include <utility>
#include <vector>

#include "services/inference/calls/generate_call.h"
#include "services/rpc/slice_wire.h"

namespace hearth {
namespace {

// Adds one message of a run to its answer.
void Collect(const v1::GenerateResponse& message, v1::Answer* answer) {
  if (message.has_started()) {
    *answer->mutable_started() = message.started();
  } else if (message.has_token()) {
    answer->mutable_token_ids()->MergeFrom(message.token().ids());
    answer->mutable_text()->append(message.token().text());
  } else if (message.has_finished()) {
    *answer->mutable_finished() = message.finished();
  }
}

v1::Answer Failure(const absl::Status& why) {
  v1::Answer answer;
  answer.set_error_code(static_cast<uint32_t>(why.code()));
  answer.set_error(std::string(why.message()));
  return answer;
}

}  // namespace

// Makes one answer of a run's messages, which come one after the other.
class AskCall::Collector final : public GenerateSink {
 public:
  Collector(std::shared_ptr<AskCall> call, uint32_t number,
            std::function<void(v1::Answer)> answered)
      : call_(std::move(call)), number_(number), answered_(std::move(answered)) {}

  bool OnMessage(const v1::GenerateResponse& message) override {
    Collect(message, &answer_);
    return true;
  }
  void OnEnd(const absl::Status& status) override {
    {
      absl::MutexLock lock(&call_->mutex_);
      call_->running_.erase(number_);
    }
    // It gave way to another tenant's request before it began: as if it had been refused.
    if (absl::IsResourceExhausted(status) && !answer_.has_started() && number_ != kContext) {
      call_->Refused(number_, status);
      return call_->BeginQuestions();
    }
    answered_(status.ok() ? std::move(answer_) : Failure(status));
  }

 private:
  const std::shared_ptr<AskCall> call_;
  const uint32_t number_;
  const std::function<void(v1::Answer)> answered_;
  v1::Answer answer_;
};

void AskCall::Start(Service service, uint64_t bytes, std::shared_ptr<void> place) {
  service_ = std::move(service);
  {
    absl::MutexLock lock(&mutex_);
    place_ = std::move(place);
  }
  Delegate([this, bytes] {
    return service_.pool->SubmitRequest(service_.tenant, bytes, [self = Shared(this)] {
      self->Plan();
      absl::MutexLock lock(&self->mutex_);
      self->Release();
    });
  });
}

void AskCall::Plan() {
  absl::StatusOr<AskPlan> plan = service_.plan();
  if (!plan.ok()) return End(plan.status());
  plan_ = *std::move(plan);
  {
    absl::MutexLock lock(&mutex_);
    line_ = QuestionLine(plan_.questions(), plan_.parallel());
  }
  AskContext();
}

// The first question's, where it has one: where the context ends may depend on what follows.
absl::StatusOr<Prompt> AskCall::SharedPrompt() {
  const absl::StatusOr<v1::PromptInput> first = plan_.PromptOf(0);
  if (first.ok()) {
    absl::StatusOr<Prompt> prompt = service_.build(*first, PromptPurpose::kGenerate);
    if (prompt.ok()) return prompt;
  }
  absl::StatusOr<Prompt> alone = service_.build(plan_.request.context(), PromptPurpose::kPrefill);
  if (alone.ok()) return alone;
  return absl::Status(alone.status().code(), "context: " + std::string(alone.status().message()));
}

void AskCall::AskContext() {
  absl::StatusOr<Prompt> prompt = SharedPrompt();
  if (!prompt.ok()) return End(prompt.status());
  EngineRequest request = plan_.ContextRequest(*prompt);
  if (!plan_.keeps_context() || request.token_ids.empty()) return BeginQuestions();
  const absl::Status asked =
      Run(kContext, std::move(request), GenerateOptions(),
          [self = Shared(this)](const v1::Answer& context) { self->ContextIsReady(context); });
  if (!asked.ok()) End(asked);
}

void AskCall::ContextIsReady(const v1::Answer& context) {
  if (context.error_code() != 0) {
    return End(absl::Status(static_cast<absl::StatusCode>(context.error_code()),
                            "context: " + context.error()));
  }
  v1::AskResponse message;
  v1::AskContext* ready = message.mutable_context();
  ready->set_tokens(context.started().prompt_tokens());
  ready->set_cached_tokens(context.started().cached_tokens());
  ready->set_computed_tokens(context.finished().computed_tokens());
  ready->set_source_tier(context.started().source_tier());
  ready->set_total_ms(context.finished().total_ms());
  Push(MessageBytes(message));
  {
    absl::MutexLock lock(&mutex_);
    Note(context);
  }
  BeginQuestions();
}

void AskCall::BeginQuestions() {
  while (true) {
    std::optional<uint32_t> question;
    {
      absl::MutexLock lock(&mutex_);
      if (ended() || ready_bytes() > service_.waiting_bytes) return;
      question = line_.Take();
      if (!question.has_value()) return;
      Hold();
    }
    const auto ask = [self = Shared(this), question = *question] {
      self->Ask(question);
      absl::MutexLock lock(&self->mutex_);
      self->Release();
    };
    const absl::Status accepted =
        service_.pool->SubmitRequest(service_.tenant, plan_.BytesOf(*question), ask);
    if (accepted.ok()) continue;
    Refused(*question, accepted);
    absl::MutexLock lock(&mutex_);
    Release();
  }
}

void AskCall::Ask(uint32_t question) {
  const absl::StatusOr<v1::PromptInput> input = plan_.PromptOf(question);
  absl::StatusOr<Prompt> prompt = input.ok() ? service_.build(*input, PromptPurpose::kGenerate)
                                             : absl::StatusOr<Prompt>(input.status());
  absl::Status asked = prompt.status();
  if (asked.ok()) {
    asked = Run(question, plan_.QuestionRequest(*std::move(prompt)), plan_.options,
                [self = Shared(this), question](v1::Answer answer) {
                  self->Answered(question, std::move(answer));
                  self->BeginQuestions();
                });
  }
  if (asked.ok()) return;
  Refused(question, asked);
  BeginQuestions();
}

absl::Status AskCall::Run(uint32_t number, EngineRequest request, const GenerateOptions& options,
                          std::function<void(v1::Answer)> answered) {
  {
    absl::MutexLock lock(&mutex_);
    const bool begins = running_.emplace(number, nullptr).second;
    assert(begins);
  }
  auto handle = RunGenerate(service_.engine, std::move(request), options,
                            std::make_shared<Collector>(Shared(this), number, std::move(answered)));
  absl::MutexLock lock(&mutex_);
  if (!handle.ok()) {
    running_.erase(number);
    return handle.status();
  }
  if (cancelled_) (*handle)->Cancel();
  const auto running = running_.find(number);
  if (running != running_.end()) running->second = *std::move(handle);
  return absl::OkStatus();
}

void AskCall::Refused(uint32_t question, const absl::Status& why) {
  const bool full = absl::IsResourceExhausted(why);
  if (!full && !absl::IsUnavailable(why)) return Answered(question, Failure(why));
  absl::MutexLock lock(&mutex_);
  if (line_.PutBack(question) && full) return;
  line_.Stop();
  stopped_ = why;
  EndWhenDone();
}

void AskCall::Answered(uint32_t question, v1::Answer answer) {
  assert(question < plan_.questions());
  v1::AskResponse message;
  answer.set_question(question);
  answer.set_id(plan_.request.questions(static_cast<int>(question)).id());
  *message.mutable_answer() = std::move(answer);
  grpc::ByteBuffer bytes = MessageBytes(message);
  absl::MutexLock lock(&mutex_);
  Note(message.answer());
  PushLocked(std::move(bytes));
  line_.NoteAnswered();
  EndWhenDone();
}

void AskCall::Note(const v1::Answer& answer) {
  mutex_.AssertHeld();
  if (ended()) return;
  CallNote* note = call()->note();
  note->tokens += answer.started().prompt_tokens();
  note->hit_tokens += answer.started().cached_tokens();
  note->generated += static_cast<uint64_t>(answer.token_ids_size());
}

void AskCall::EndWhenDone() {
  mutex_.AssertHeld();
  if (line_.done()) EndLocked(stopped_);
  WriteNext();
}

void AskCall::OnWriteDone(bool ok) {
  const std::shared_ptr<AskCall> self = Shared(this);  // the call may be done within
  StreamCall::OnWriteDone(ok);
  BeginQuestions();
}

void AskCall::OnGone() {
  std::vector<Handle> handles;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    for (const auto& [number, handle] : running_) handles.push_back(handle);
  }
  for (const Handle& handle : handles) {
    if (handle != nullptr) handle->Cancel();
  }
  StreamCall::OnGone();
}

}  // namespace hearth
