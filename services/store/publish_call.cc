#include <cassert>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/cache_store.pb.h"
#include "services/rpc/slice_wire.h"
#include "services/rpc/status_conversion.h"
#include "services/serving/calls/admission.h"
#include "services/store/slice_stream.h"
#include "services/store/store_calls.h"
#include "services/store/store_conversion.h"

namespace hearth {
namespace {

// Of a message behind the begin: gRPC's own thread parses it.
constexpr uint64_t kMaxSliceElements = 64;

using Reactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// One Publish stream of the store, from its begin to its ack.
//
// Slices are copied once, from gRPC's receive buffers to the memory where the store keeps them. The
// begin, which computes keys, runs on a pool; the commit, which waits for the disk, on an executor:
// so that no thread of gRPC's blocks.
// Invariants: (1) one read, one write or one commit is in progress at a time; (2) a stream holds
// one message beside what the store counts as staged; (3) Finish is called once;
// (4) a stream that does not keep its pace is cancelled (limit.h).
class PublishCall final : public Reactor, public std::enable_shared_from_this<PublishCall> {
 public:
  PublishCall(const StoreCallParts& parts, Executor* committers,
              grpc::CallbackServerContext* context)
      : parts_(parts), committers_(committers), context_(context) {}

  // Keeps itself alive until OnDone.
  Reactor* Start(Limit* places) {
    self_ = shared_from_this();
    caller_ = parts_.admission->Enter("Publish", *context_, 0, &call_,
                                      /*reads_on=*/true);
    if (!caller_.ok()) {
      End(caller_.status());
      return this;
    }
    auto place = places->Enter(*caller_, [weak = weak_from_this()](const absl::Status& why) {
      if (const auto self = weak.lock()) self->LosePlace(why);
    });
    if (!place.ok()) {
      End(place.status());
      return this;
    }
    place_ = *std::move(place);
    Read();
    return this;
  }

  void OnReadDone(bool ok) override {
    {
      absl::MutexLock lock(&end_mutex_);
      if (std::exchange(waits_for_, Waits::kNothing) != Waits::kRead) return;  // it was ended
    }
    place_->WaitsForCaller(false);
    if (ok) {
      call_->Took(message_.Length());
      place_->Moved(message_.Length());
    }
    const absl::Status status = ok ? TakeMessageBytes() : EndedEarly();
    if (!status.ok()) End(status);
  }
  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&end_mutex_);
      waits_for_ = Waits::kNothing;
    }
    place_->WaitsForCaller(false);
    if (!ok) return End(EndedEarly());
    if (acknowledged_) return End(absl::OkStatus());
    Read();
  }
  // The read, write or commit in progress fails then, and ends the call.
  void OnCancel() override {}
  // The thread that ends slow streams may hold the last reference, when the service is gone.
  void OnDone() override {
    place_.reset();
    call_.reset();
    session_.reset();
    self_.reset();
  }

 private:
  enum class Waits { kNothing, kRead, kWrite };

  void Read() ABSL_LOCKS_EXCLUDED(end_mutex_) {
    absl::Status lost;
    {
      absl::MutexLock lock(&end_mutex_);
      lost = lost_;
      // Under the lock: whoever sees that it reads may end it, and nothing of it is left then.
      if (lost.ok()) {
        waits_for_ = Waits::kRead;
        place_->WaitsForCaller(true);
        StartRead(&message_);
      }
    }
    if (!lost.ok()) End(lost);
  }

  // The caller does not keep the pace: its staged bytes go to others.
  void LosePlace(const absl::Status& why) ABSL_LOCKS_EXCLUDED(end_mutex_) {
    {
      absl::MutexLock lock(&end_mutex_);
      if (ended_ || !lost_.ok()) return;
      lost_ = why;
      // A write that is not taken ends no other way; the call is there until End, which waits here.
      if (waits_for_ == Waits::kWrite) context_->TryCancel();
      if (waits_for_ != Waits::kRead) return;  // it ends before it reads on
      waits_for_ = Waits::kNothing;
    }
    End(why);  // the read in progress fails
  }

  absl::Status EndedEarly() ABSL_LOCKS_EXCLUDED(end_mutex_) {
    absl::MutexLock lock(&end_mutex_);
    if (!lost_.ok()) return lost_;
    return absl::CancelledError(assembler_.has_value()
                                    ? "publish: the stream ended before its commit"
                                    : "publish: the stream ended before its begin");
  }

  // Handles one message and starts what comes after it.
  absl::Status TakeMessageBytes() {
    if (!assembler_.has_value()) {
      // Nothing is read or written until it ends, so the call is there and nobody else uses it.
      return parts_.lookups->Submit(caller_->ShareName(), message_.Length(),
                                    [self = shared_from_this()] {
                                      if (absl::Status status = self->TakeBegin(); !status.ok())
                                        self->End(status);
                                    });
    }
    v1::PublishRequest request;
    const absl::Status taken = TakeMessage(
        &message_, &request, nullptr,
        [this](const SliceHeader& header, size_t bytes) {
          return assembler_->Place(header, bytes);
        },
        kMaxSliceElements);
    message_.Clear();
    if (!taken.ok()) return taken;
    switch (request.message_case()) {
      case v1::PublishRequest::MESSAGE_NOT_SET:  // a slice, or nothing at all
        if (absl::Status status = assembler_->PutPiece(); !status.ok()) return status;
        Read();
        return absl::OkStatus();
      case v1::PublishRequest::kCommit:
        return Commit();
      default:
        return absl::InvalidArgumentError("publish: expected a slice or the commit");
    }
  }

  // On the pool.
  absl::Status TakeBegin() {
    v1::PublishRequest request;
    const absl::Status parsed = ParseAwaited(*context_, message_, &request);
    message_.Clear();
    if (!parsed.ok()) return parsed;
    if (request.has_begin()) return Begin(request.begin());
    return absl::InvalidArgumentError("publish: the first message must be begin");
  }

  absl::Status Begin(const v1::PublishBegin& begin) {
    assert(session_ == nullptr && !assembler_.has_value());
    absl::StatusOr<PublishSpec> spec = SpecFromProto(begin, *caller_);
    if (!spec.ok()) return spec.status();
    if (absl::Status status = place_->BelongsTo(spec->tenant); !status.ok()) return status;
    spec->publisher = caller_->name.empty() ? context_->peer() : caller_->name;
    spec->stopped = [this] { return context_->IsCancelled(); };  // read while this runs only
    absl::StatusOr<KvLayout> layout = spec->fingerprint.Layout();
    if (!layout.ok()) return layout.status();
    absl::StatusOr<std::unique_ptr<PublishSession>> session = parts_.store->Publish(*spec);
    if (!session.ok()) return session.status();
    session_ = *std::move(session);
    call_->note()->tenant = spec->tenant;
    call_->note()->tokens = spec->token_ids.size();
    assembler_.emplace(*spec, *layout, session_.get());
    v1::PublishResponse response;
    v1::PublishPlan* plan = response.mutable_plan();
    plan->mutable_needed()->Add(session_->needed().begin(), session_->needed().end());
    Send(response);
    return absl::OkStatus();
  }

  absl::Status Commit() {
    assert(session_ != nullptr && !acknowledged_);
    if (absl::Status status = assembler_->Finish(); !status.ok()) return status;
    const auto commit = [self = shared_from_this()] {
      self->session_->CommitThen(
          [self](const absl::StatusOr<PublishResult>& result) { self->Acknowledge(result); });
    };
    if (committers_->TrySchedule(0, commit)) return absl::OkStatus();
    return absl::ResourceExhaustedError("too many publishes wait for the disk; try again later");
  }

  void Acknowledge(const absl::StatusOr<PublishResult>& result) {
    if (!result.ok()) return End(result.status());
    v1::PublishResponse response;
    ResultToProto(*result, response.mutable_ack());
    if (!result->boundaries.empty()) call_->note()->hit_tokens = result->boundaries.back();
    acknowledged_ = true;
    Send(response);
  }

  void Send(const v1::PublishResponse& response) {
    answer_ = MessageBytes(response);
    absl::Status lost;
    {
      absl::MutexLock lock(&end_mutex_);
      lost = lost_;
      waits_for_ = Waits::kWrite;
    }
    if (!lost.ok()) return End(lost);  // nobody would end a write that is not taken
    place_->WaitsForCaller(true);
    StartWrite(&answer_);
  }

  void End(const absl::Status& status) {
    {
      absl::MutexLock lock(&end_mutex_);
      assert(!ended_);  // Finish is called once
      ended_ = true;
    }
    assembler_.reset();
    session_.reset();
    const absl::Status noted = call_ == nullptr ? status : call_->Finish(status);
    Finish(ToGrpcStatus(noted, context_));
  }

  const StoreCallParts parts_;
  Executor* const committers_;
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<PublishCall> self_;      // held for gRPC
  std::unique_ptr<Admission::Call> call_;  // null when the server drains
  std::unique_ptr<Limit::Place> place_;    // null when there is none
  std::unique_ptr<PublishSession> session_;
  absl::StatusOr<Identity> caller_ = absl::UnknownError("not asked yet");
  std::optional<SliceAssembler> assembler_;  // from the begin on
  grpc::ByteBuffer message_, answer_;
  bool acknowledged_ = false;

  absl::Mutex end_mutex_;
  absl::Status lost_ ABSL_GUARDED_BY(end_mutex_);  // why it lost its place
  bool ended_ ABSL_GUARDED_BY(end_mutex_) = false;
  Waits waits_for_ ABSL_GUARDED_BY(end_mutex_) = Waits::kNothing;
};

}  // namespace

Reactor* StartPublish(const StoreCallParts& parts, Executor* committers, Limit* places,
                      grpc::CallbackServerContext* context) {
  return std::make_shared<PublishCall>(parts, committers, context)->Start(places);
}

}  // namespace hearth
