// BlockingStream: a streaming call from one thread, message by message, that waits for each
// operation.
//
// Like gRPC's synchronous streams, for byte buffers, which generated stubs do not offer and which
// need no copy of their own. Thread safety: none; but the context may be cancelled from any thread,
// which ends a wait. Ownership: the context and the channel must outlive it.
#ifndef HEARTH_SERVICES_INFERENCE_BLOCKING_STREAM_H_
#define HEARTH_SERVICES_INFERENCE_BLOCKING_STREAM_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/time.h>

#include <algorithm>
#include <cassert>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "cache_store/base/clock.h"

namespace hearth {

// The time so far from now, for gRPC. Setting the machine's clock does not change it.
inline gpr_timespec MonotonicIn(absl::Duration duration) {
  const gpr_timespec span =
      duration == absl::InfiniteDuration()
          ? gpr_inf_future(GPR_TIMESPAN)
          : gpr_time_from_nanos(absl::ToInt64Nanoseconds(duration), GPR_TIMESPAN);
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), span);
}

class BlockingStream {
 public:
  // `method`: "/hearth.v1.CacheStore/Fetch". An operation that has not ended by `deadline` ends the
  // call as the context's own deadline would; the call itself may live longer. `clock`: of
  // `deadline`, and only goes forward; null: a SteadyClock.
  BlockingStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                 grpc::ClientContext* context, absl::Time deadline = absl::InfiniteFuture(),
                 Clock* clock = nullptr)
      : context_(context),
        deadline_(deadline),
        clock_(clock == nullptr ? &steady_clock_ : clock),
        stub_(channel),
        call_(stub_.PrepareCall(context, method, &queue_)) {
    call_->StartCall(this);
    Wait();  // a call that cannot start says so in Finish
  }
  // Cancels a call that was not finished.
  ~BlockingStream() {
    if (!finished_) {
      context_->TryCancel();
      Finish();
    }
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  BlockingStream(const BlockingStream&) = delete;
  BlockingStream& operator=(const BlockingStream&) = delete;

  // False when the stream is broken: Finish says why.
  bool Write(const grpc::ByteBuffer& request) {
    assert(!finished_);
    call_->Write(request, this);
    return Wait();
  }
  // The last message this side sends.
  bool WriteLast(const grpc::ByteBuffer& request) {
    assert(!finished_);
    call_->WriteLast(request, grpc::WriteOptions(), this);
    return Wait();
  }
  // False at the end of the stream: Finish says whether it is complete.
  bool Read(grpc::ByteBuffer* response) {
    assert(!finished_);
    call_->Read(response, this);
    return Wait();
  }
  // From here on, an operation ends the call if it has not ended after `timeout` from now, or takes
  // longer than `most` itself.
  void SetTimeout(absl::Duration timeout, absl::Duration most = absl::InfiniteDuration()) {
    deadline_ = clock_->Now() + timeout;
    most_ = most;
  }
  // Whether an operation did not end in time, which ended the call.
  bool late() const { return late_; }

  // To be called once. Reads to the end of a stream that the peer has not ended: to end it at once,
  // cancel the context first. A call cancelled once its deadline had passed is late: its caller
  // gives up at that very moment.
  grpc::Status Finish() {
    assert(!finished_);
    finished_ = true;
    grpc::Status status;
    call_->Finish(&status, this);
    Wait();
    const bool is_cancelled = status.error_code() == grpc::StatusCode::CANCELLED;
    if (is_cancelled && clock_->Now() >= deadline_) late_ = true;
    if (late_) return {grpc::StatusCode::DEADLINE_EXCEEDED, "the answer did not come in time"};
    return status;
  }

 private:
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    const absl::Duration left = std::min(deadline_ - clock_->Now(), most_);
    if (!late_ &&
        queue_.AsyncNext(&tag, &ok, MonotonicIn(left)) == grpc::CompletionQueue::TIMEOUT) {
      late_ = true;
      context_->TryCancel();
    }
    const bool got = tag != nullptr || queue_.Next(&tag, &ok);
    assert(got && tag == this);
    return got && ok && !late_;
  }

  SteadyClock steady_clock_;
  grpc::ClientContext* const context_;
  absl::Time deadline_;
  absl::Duration most_ = absl::InfiniteDuration();
  Clock* const clock_;
  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  const std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool finished_ = false;
  bool late_ = false;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_BLOCKING_STREAM_H_
