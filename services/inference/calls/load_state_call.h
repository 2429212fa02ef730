// LoadStateCall: one LoadState stream: receives a file, checks it on a pool, and puts its keys and
// values into the worker's pool.
//
// Thread safety and ownership: upload_call.h; the service must outlive it.
// Invariant: there is room for all that was received before more is read.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_LOAD_STATE_CALL_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_LOAD_STATE_CALL_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "services/inference/calls/generator.h"
#include "services/serving/calls/upload_call.h"

namespace hearth {

class LoadStateCall final : public UploadCall<grpc::ServerReadReactor<grpc::ByteBuffer>> {
 public:
  LoadStateCall(grpc::CallbackServerContext* context, Generator* generator,
                grpc::ByteBuffer* response)
      : UploadCall(context), generator_(generator), response_(response) {}
  void Start(Admission* admission, const Limit& limit);

 private:
  absl::Status OnMessage() override;
  // Once the first bytes are there: how many there will be.
  absl::Status ReadPrelude();
  absl::Status OnNoMore() override;
  absl::Status Load();  // on the pool
  void BeforeFinish() override { std::string().swap(file_); }

  Generator* const generator_;
  grpc::ByteBuffer* const response_;
  std::string tenant_;
  std::string file_;
  uint64_t file_bytes_ = 0;  // that it announces; 0: not known yet
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_LOAD_STATE_CALL_H_
