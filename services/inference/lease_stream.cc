#include "services/inference/lease_stream.h"

#include <cassert>

#include "services/rpc/request_id.h"
#include "services/rpc/status_conversion.h"

namespace hearth {

LeaseStream::LeaseStream(v1::CacheStore::Stub* stub, const v1::LeaseRequest& request,
                         const std::string& request_id, absl::Time until, Clock* clock)
    : clock_(clock) {
  SendRequestId(request_id, &context_);
  context_.set_deadline(absl::ToChronoTime(until));
  call_ = stub->PrepareAsyncLease(&context_, request, &queue_);
  call_->StartCall(this);
  pending_ = true;
}

LeaseStream::~LeaseStream() {
  context_.TryCancel();
  if (pending_) Wait();
  if (!finished_) {
    grpc::Status status;
    call_->Finish(&status, this);
    Wait();
  }
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

bool LeaseStream::Wait() {
  void* tag = nullptr;
  bool ok = false;
  const bool got = queue_.Next(&tag, &ok);
  assert(got && tag == this);
  pending_ = false;
  return got && ok;
}

absl::Status LeaseStream::Read(v1::LeaseResponse* response, absl::Time deadline) {
  assert(!finished_);
  // The call's start may still be under way; then comes the read.
  for (bool reading = false;;) {
    if (!pending_) {
      call_->Read(response, this);
      pending_ = reading = true;
    }
    void* tag = nullptr;
    bool ok = false;
    const auto next = queue_.AsyncNext(&tag, &ok, absl::ToChronoTime(deadline));
    if (next != grpc::CompletionQueue::GOT_EVENT) {
      context_.TryCancel();
      Wait();  // what was under way may still write to `response`
      return absl::DeadlineExceededError("no answer about a lease in time");
    }
    pending_ = false;
    if (reading && ok) return absl::OkStatus();
    if (!ok) break;
  }
  grpc::Status status;
  finished_ = true;
  call_->Finish(&status, this);
  Wait();
  absl::Status failed = FromGrpcStatus(status);
  if (absl::IsCancelled(failed) && clock_->Now() >= deadline) {
    return absl::DeadlineExceededError("the wait for a lease was given up at its end");
  }
  return failed.ok() ? absl::DataLossError("the lease ended before its answer") : failed;
}

}  // namespace hearth
