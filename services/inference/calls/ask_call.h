// AskCall: one Ask stream: computes a context once, then answers its questions, each a request of
// the caller's tenant.
//
// Thread safety: stream_call.h; other shared fields are under mutex_. Ownership: shared by gRPC,
// until OnDone, and by the events of its runs; the service is used only while the call is held.
// Invariants: (1) a cancelled or expired call cancels all its requests; (2) no question begins
// while messages of more than kMaxWaitingBytes wait for the caller; (3) a question that begins has
// one answer, unless the call is aborted.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_ASK_CALL_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_ASK_CALL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/inference.pb.h"
#include "services/inference/calls/ask_plan.h"
#include "services/inference/calls/question_line.h"
#include "services/serving/calls/fair_pool.h"
#include "services/serving/calls/stream_call.h"
#include "worker/engine/engine.h"
#include "worker/text/prompt.h"

namespace hearth {

class AskCall final : public StreamCall {
 public:
  // The parts of the service, valid while the call is held.
  struct Service {
    Engine* engine = nullptr;
    FairPool* pool = nullptr;
    std::string tenant;
    size_t waiting_bytes = 0;  // of messages that the caller has not read
    std::function<absl::StatusOr<AskPlan>()> plan;
    std::function<absl::StatusOr<Prompt>(const v1::PromptInput&, PromptPurpose)> build;
  };

  using StreamCall::StreamCall;

  // `bytes`: of the message. `place`: kept until the caller learns of the end.
  void Start(Service service, uint64_t bytes, std::shared_ptr<void> place);

  void OnWriteDone(bool ok) override;

 private:
  class Collector;
  using Handle = std::shared_ptr<EngineRequestHandle>;
  static constexpr uint32_t kContext = UINT32_MAX;  // in place of a question's number

  void OnGone() override;
  void BeforeFinish() override { place_.reset(); }

  // Runs on the pool, with the call held.
  void Plan();
  absl::StatusOr<Prompt> SharedPrompt();
  void AskContext();
  void Ask(uint32_t question);
  absl::Status Run(uint32_t number, EngineRequest request, const GenerateOptions& options,
                   std::function<void(v1::Answer)> answered);

  void BeginQuestions();
  void ContextIsReady(const v1::Answer& context);
  void Refused(uint32_t question, const absl::Status& why);
  void Answered(uint32_t question, v1::Answer answer);
  void Note(const v1::Answer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndWhenDone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Service service_;
  AskPlan plan_;  // const once the context is asked for

  std::shared_ptr<void> place_ ABSL_GUARDED_BY(mutex_);
  QuestionLine line_ ABSL_GUARDED_BY(mutex_);
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);  // the call's status, once the line is done
  std::map<uint32_t, Handle> running_ ABSL_GUARDED_BY(mutex_);  // null: about to be submitted
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_ASK_CALL_H_
