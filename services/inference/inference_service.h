// InferenceService: implements hearth.v1.Inference by a Generator.
//
// All calls are reactors: a generation holds no thread, and the service notices at once when a
// caller leaves. Thread safety: gRPC calls the methods from many threads. Ownership: all objects
// given by pointer must outlive the service and the server that it is registered with.
#ifndef HEARTH_SERVICES_INFERENCE_INFERENCE_SERVICE_H_
#define HEARTH_SERVICES_INFERENCE_INFERENCE_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/inference.grpc.pb.h"
#include "services/inference/calls/generator.h"
#include "services/inference/calls/inference_calls.h"
#include "services/rpc/client_access.h"
#include "services/serving/calls/admission.h"
#include "services/serving/reachability.h"

namespace hearth {

struct InferenceOptions {
  std::vector<std::string> notes = {};  // remarks from the loading of the model
  std::string store;                    // address of the store, for messages
  ClientAccess store_access;            // TLS and token for the store
  // whether the store answers; null: the store is in this process
  const Reachability* reachability = nullptr;
  std::string model_dir;
  std::string version;
};

// Methods get raw bytes, so that gRPC's threads do not parse requests, which may be large.
using StateServiceBase = v1::Inference::WithRawCallbackMethod_SaveState<
    v1::Inference::WithRawCallbackMethod_LoadState<v1::Inference::Service>>;
using InferenceServiceBase =
    v1::Inference::WithRawCallbackMethod_Generate<v1::Inference::WithRawCallbackMethod_Prefill<
        v1::Inference::WithRawCallbackMethod_Tokenize<v1::Inference::WithRawCallbackMethod_GetModel<
            v1::Inference::WithRawCallbackMethod_Explain<StateServiceBase>>>>>;

class InferenceService final : public InferenceServiceBase {
 public:
  InferenceService(Generator* generator, Admission* admission, InferenceOptions options);

  using Bytes = grpc::ByteBuffer;
  using Context = grpc::CallbackServerContext;
  ByteStream* Generate(Context* context, const Bytes* request) override;
  ByteStream* SaveState(Context* context, const Bytes* request) override;
  grpc::ServerReadReactor<Bytes>* LoadState(Context* context, Bytes* response) override;
  ByteStream* Prefill(Context* context, const Bytes* request) override;
  grpc::ServerUnaryReactor* Tokenize(Context* context, const Bytes* request,
                                     Bytes* response) override;
  grpc::ServerUnaryReactor* GetModel(Context* context, const Bytes* request,
                                     Bytes* response) override;
  grpc::ServerUnaryReactor* Explain(Context* context, const Bytes* request,
                                    Bytes* response) override;

 private:
  absl::Status StartExplain(const v1::ExplainInputRequest& request, const std::string& tenant,
                            const grpc::CallbackServerContext* context, ExplainCallback done) const;

  Generator* const generator_;
  Admission* const admission_;
  const InferenceOptions options_;
  // Limit of SaveState and LoadState calls. Each holds a file in memory, and the objects made of
  // it.
  const Limit state_limit_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_INFERENCE_SERVICE_H_
