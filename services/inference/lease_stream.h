// LeaseStream: a worker's side of one Lease call: reads the answers, then holds the lease open.
//
// Thread safety: one thread at a time; its context may be cancelled from any. Ownership: the stub's
// channel must outlive it. The destructor cancels the call, which ends the lease.
#ifndef HEARTH_SERVICES_INFERENCE_LEASE_STREAM_H_
#define HEARTH_SERVICES_INFERENCE_LEASE_STREAM_H_

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache_store/base/clock.h"
#include "proto/cache_store.grpc.pb.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

class LeaseStream final : public ComputeLease {
 public:
  // `until`: when the call ends by itself. `clock`: says whether a call that was cancelled was
  // late.
  LeaseStream(v1::CacheStore::Stub* stub, const v1::LeaseRequest& request,
              const std::string& request_id, absl::Time until, Clock* clock);
  ~LeaseStream() override;

  grpc::ClientContext* context() { return &context_; }
  // Keeps `guard` as long as the context lives.
  void KeepGuard(std::shared_ptr<void> guard) { guard_ = std::move(guard); }

  // The next answer. kDeadlineExceeded when none came by `deadline`, also where the caller gave up
  // at that moment; no more Reads after an error.
  absl::Status Read(v1::LeaseResponse* response, absl::Time deadline);

 private:
  // Waits for the one operation under way.
  bool Wait();

  Clock* const clock_;
  grpc::ClientContext context_;
  std::shared_ptr<void> guard_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::ClientAsyncReader<v1::LeaseResponse>> call_;
  bool pending_ = false;   // an operation is under way
  bool finished_ = false;  // Finish was called
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_LEASE_STREAM_H_
