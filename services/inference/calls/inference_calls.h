// Starts the streaming calls of hearth.v1.Inference.
//
// Thread safety: gRPC calls from its threads, the engine and the generator's pool from theirs.
// Ownership: a call keeps itself until it is done; generator and admission must outlive it.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_INFERENCE_CALLS_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_INFERENCE_CALLS_H_

#include <grpcpp/grpcpp.h>

#include "services/inference/calls/generator.h"
#include "services/serving/calls/admission.h"

namespace hearth {

using ByteStream = grpc::ServerWriteReactor<grpc::ByteBuffer>;

// Starts a Generate or a Prefill call, as `purpose` says.
ByteStream* StartGenerate(Generator* generator, Admission* admission, PromptPurpose purpose,
                          grpc::CallbackServerContext* context, const grpc::ByteBuffer* request);
// `limit`: for all SaveState and LoadState calls together.
ByteStream* StartSaveState(Generator* generator, Admission* admission, const Limit& limit,
                           grpc::CallbackServerContext* context, const grpc::ByteBuffer* request);
grpc::ServerReadReactor<grpc::ByteBuffer>* StartLoadState(Generator* generator,
                                                          Admission* admission, const Limit& limit,
                                                          grpc::CallbackServerContext* context,
                                                          grpc::ByteBuffer* response);

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_INFERENCE_CALLS_H_
