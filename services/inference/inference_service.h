// InferenceService: hearth.v1.Inference over an Engine and a tokenizer.
//
// Reactors throughout: a generation holds no thread, and a caller that goes away is noticed at
// once. Prompts are made on a pool of the service, in which tenants take turns. Thread safety: gRPC
// calls the methods from many threads. Ownership: all pointers that it is given must outlive
// the service, and the server it is registered with.
#ifndef HEARTH_SERVICES_INFERENCE_INFERENCE_SERVICE_H_
#define HEARTH_SERVICES_INFERENCE_INFERENCE_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/inference.grpc.pb.h"
#include "services/inference/calls/recent_answers.h"
#include "services/inference/calls/request_call.h"
#include "services/inference/explainer.h"
#include "services/rpc/client_access.h"
#include "services/serving/calls/admission.h"
#include "services/serving/calls/fair_pool.h"
#include "services/serving/door/identity.h"
#include "services/serving/reachability.h"
#include "worker/engine/engine.h"
#include "worker/text/prompt.h"
#include "worker/text/tokenizer.h"

namespace hearth {

// What the server's owner says of requests that leave it to the server; absent: nothing.
struct DefaultSampling {
  std::optional<float> temperature, top_p;
  std::optional<uint32_t> top_k;
};
// "temperature=0.7,top_k=40,top_p=0.9", or some of these. kInvalidArgument names what is none.
absl::StatusOr<DefaultSampling> ParseDefaultSampling(const std::string& text);

struct InferenceOptions {
  const Tokenizer* tokenizer = nullptr;  // null: serves token ids, for this reason:
  std::string why_no_tokenizer = "";
  std::string why_no_chats = "";               // empty: chats are served
  std::vector<std::string> notes = {};         // on the load
  Explainer* explainer = nullptr;              // null: no store
  std::string store;                           // where that is, for people
  ClientAccess store_access;                   // how it is reached
  const Reachability* reachability = nullptr;  // of a store in another process
  std::string model_dir;
  std::string version;
  bool strict_chats = false;                       // whatever a request says
  bool generation_config = true;                   // the model's file says what OpenSampling has
  DefaultSampling default_sampling = {};           // before it
  absl::Duration progress_pause = kProgressPause;  // between messages with progress
  absl::Duration plan_wait = kPlanWait;            // of an answer's end, for the store's plan
  std::function<void(const FinishedInfo&)> on_finished;  // for metrics; may be null
};

// Methods get raw bytes: no thread of gRPC's parses a request that may be large.
using StateServiceBase = v1::Inference::WithRawCallbackMethod_SaveState<
    v1::Inference::WithRawCallbackMethod_LoadState<v1::Inference::Service>>;
using InferenceServiceBase =
    v1::Inference::WithRawCallbackMethod_Generate<v1::Inference::WithRawCallbackMethod_Prefill<
        v1::Inference::WithRawCallbackMethod_Tokenize<v1::Inference::WithRawCallbackMethod_GetModel<
            v1::Inference::WithRawCallbackMethod_Explain<StateServiceBase>>>>>;

class InferenceService final : public InferenceServiceBase {
 public:
  InferenceService(Engine* engine, Admission* admission, InferenceOptions options);

  // The pool that makes prompts. For tests, which block it.
  FairPool* prompts() { return &prompts_; }

  using Bytes = grpc::ByteBuffer;
  using Context = grpc::CallbackServerContext;
  grpc::ServerWriteReactor<Bytes>* Generate(Context* context, const Bytes* request) override;
  grpc::ServerWriteReactor<Bytes>* SaveState(Context* context, const Bytes* request) override;
  grpc::ServerReadReactor<Bytes>* LoadState(Context* context, Bytes* response) override;
  grpc::ServerWriteReactor<Bytes>* Prefill(Context* context, const Bytes* request) override;
  grpc::ServerUnaryReactor* Tokenize(Context* context, const Bytes* request,
                                     Bytes* response) override;
  grpc::ServerUnaryReactor* GetModel(Context* context, const Bytes* request,
                                     Bytes* response) override;
  grpc::ServerUnaryReactor* Explain(Context* context, const Bytes* request,
                                    Bytes* response) override;

 private:
  // On the pool; ends early once the call of `context` is cancelled.
  absl::StatusOr<Prompt> PromptFrom(const v1::PromptInput& input, PromptPurpose purpose,
                                    const grpc::CallbackServerContext* context) const;
  absl::Status AddPrompt(const v1::PromptInput& input, PromptPurpose purpose,
                         const grpc::CallbackServerContext* context, EngineRequest* request) const;
  // Of a request that leaves it to the server.
  SamplingParams OpenSampling() const;
  // Everything but the prompt and the tenant; fills in `options`.
  absl::Status GenerateRequestFrom(const v1::GenerateRequest& request, EngineRequest* converted,
                                   GenerateOptions* options) const;
  // A call that follows one request of the engine, which `convert` makes of the message.
  template <typename Call, typename Request, typename Convert>
  grpc::ServerWriteReactor<Bytes>* Follow(const char* method, Context* context,
                                          const Bytes* request, Convert convert);
  absl::Status StartExplain(const v1::ExplainInputRequest& request, const std::string& tenant,
                            const grpc::CallbackServerContext* context,
                            Explainer::ExplainCallback done) const;

  Engine* const engine_;
  Admission* const admission_;
  const InferenceOptions options_;
  // Each holds a file in memory, and another time what is made of it.
  const Limit state_limit_;
  RecentAnswers recent_;
  FairPool prompts_{"prompts"};
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_INFERENCE_SERVICE_H_
