// BlockingStream: a streaming call that one thread uses, message by message. Each method waits
// until its operation has ended.
//
// It works like gRPC's synchronous streams, but with byte buffers and without copying them.
// Generated stubs do not offer this. Thread safety: none, except that any thread may cancel the
// context, which ends a wait. Ownership: the context and the channel must outlive the stream.
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

// Returns the time `duration` from now, for gRPC. It does not change if the machine's clock is set.
inline gpr_timespec MonotonicIn(absl::Duration duration) {
  const gpr_timespec span =
      duration == absl::InfiniteDuration()
          ? gpr_inf_future(GPR_TIMESPAN)
          : gpr_time_from_nanos(absl::ToInt64Nanoseconds(duration), GPR_TIMESPAN);
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), span);
}

class BlockingStream {
 public:
  // `method`: such as "/hearth.v1.CacheStore/Fetch". If an operation has not ended by `deadline`,
  // it ends the call, as the context's own deadline would. But between operations the call may live
  // longer. `clock`: measures `deadline` and only goes forward. Null: a SteadyClock.
  BlockingStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                 grpc::ClientContext* context, absl::Time deadline = absl::InfiniteFuture(),
                 Clock* clock = nullptr)
      : context_(context),
        deadline_(deadline),
        clock_(clock == nullptr ? &steady_clock_ : clock),
        stub_(channel),
        call_(stub_.PrepareCall(context, method, &queue_)) {
    call_->StartCall(this);
    Wait();  // if the call cannot start, Finish returns the reason
  }
  // Cancels the call if it is not finished.
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

  // Writes a message. Returns false if the stream is broken: Finish returns the reason.
  bool Write(const grpc::ByteBuffer& request) {
    assert(!finished_);
    call_->Write(request, this);
    return Wait();
  }
  // Writes the last message from this side.
  bool WriteLast(const grpc::ByteBuffer& request) {
    assert(!finished_);
    call_->WriteLast(request, grpc::WriteOptions(), this);
    return Wait();
  }
  // Reads a message. Returns false at the end of the stream: Finish returns OK if the stream is
  // complete.
  bool Read(grpc::ByteBuffer* response) {
    assert(!finished_);
    call_->Read(response, this);
    return Wait();
  }
  // Sets a new deadline, `timeout` from now, and a limit for each single operation, `most`. An
  // operation that exceeds either one ends the call.
  void SetTimeout(absl::Duration timeout, absl::Duration most = absl::InfiniteDuration()) {
    deadline_ = clock_->Now() + timeout;
    most_ = most;
  }
  // Whether an operation exceeded its time limit, and so ended the call.
  bool late() const { return late_; }

  // Returns the status of the call. If the peer has not ended the stream, reads to its end; to end
  // the stream at once, cancel the context first. If the call is cancelled after its deadline, it
  // counts as late, because its caller gives up at the deadline too. REQUIRES: not called before.
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
