#include <cassert>
#include <memory>
#include <optional>
#include <utility>

#include "proto/cache_store.pb.h"
#include "services/rpc/slice_wire.h"
#include "services/serving/calls/upload_call.h"
#include "services/store/cache_service.h"
#include "services/store/slice_stream.h"
#include "services/store/store_conversion.h"

namespace hearth {
namespace {

// Maximum number of elements in each message after `begin`. The limit is low, because gRPC's own
// thread parses these messages.
constexpr uint64_t kMaxSliceElements = 64;

// PublishCall: one Publish stream of the store, from its `begin` message to its ack.
//
// Slices are copied once, from gRPC's receive buffers to the memory of the store. No thread of gRPC
// blocks: `begin` is handled on a pool, because it computes keys, and the commit on an executor,
// because it waits for the disk.
// Invariants: (1) one read, one write or one commit is in progress at a time; (2) a stream holds
// one message, and the bytes that the store counts as staged.
class PublishCall final : public UploadCall<UploadStream> {
 public:
  PublishCall(CacheService* service, grpc::CallbackServerContext* context)
      : UploadCall(context), service_(service) {}

  UploadStream* Start() {
    const absl::StatusOr<Identity> caller = Enter(service_->admission(), "Publish", kPublishLimit);
    if (!caller.ok()) {
      End(caller.status());
      return this;
    }
    caller_ = *caller;
    Read();
    return this;
  }

  void OnWriteDone(bool ok) override {
    EndWait();
    if (!ok) return End(GivenUpOr(OnUploadEnd()));
    if (acknowledged_) return End(absl::OkStatus());
    Read();
  }

 private:
  absl::Status OnUploadEnd() override {
    return absl::CancelledError(assembler_.has_value()
                                    ? "publish: the client ended the stream before it sent commit"
                                    : "publish: the client ended the stream before it sent begin");
  }

  absl::Status OnMessage() override {
    if (!assembler_.has_value()) {
      // Until the job ends, the call neither reads nor writes, so no other thread uses it.
      return service_->lookups()->Submit(caller_.ShareName(), message_.Length(),
                                         [this, self = shared_from_this()] {
                                           if (absl::Status status = TakeBegin(); !status.ok())
                                             End(status);
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
      case v1::PublishRequest::MESSAGE_NOT_SET:  // the message is a slice, or empty
        if (absl::Status status = assembler_->PutPiece(); !status.ok()) return status;
        Read();
        return absl::OkStatus();
      case v1::PublishRequest::kCommit:
        return Commit();
      default:
        return absl::InvalidArgumentError("publish: expected a slice or the commit");
    }
  }

  // Runs on the pool.
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
    absl::StatusOr<PublishSpec> spec = SpecFromProto(begin, caller_);
    if (!spec.ok()) return spec.status();
    if (absl::Status status = call_->ChargeTenant(spec->tenant); !status.ok()) return status;
    spec->publisher = caller_.name.empty() ? context_->peer() : caller_.name;
    spec->stopped = [this] { return context_->IsCancelled(); };  // only called while Begin runs
    absl::StatusOr<KvLayout> layout = spec->fingerprint.Layout();
    if (!layout.ok()) return layout.status();
    absl::StatusOr<std::unique_ptr<PublishSession>> session = service_->store()->Publish(*spec);
    if (!session.ok()) return session.status();
    session_ = *std::move(session);
    service_->fleet()->NoteWords(caller_, spec->fingerprint.digest(), spec->token_ids,
                                 begin.first_words());
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
    const auto commit = [this, self = shared_from_this()] {
      session_->CommitThen(
          [this, self](const absl::StatusOr<PublishResult>& result) { Acknowledge(result); });
    };
    const bool is_taken = service_->committers()->TrySchedule(0, commit);
    assert(is_taken);  // cannot fail: the queue is longer than the limit of publishes
    return absl::OkStatus();
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
    BeginWait(Waits::kWrite, [this] { StartWrite(&answer_); });
  }

  void BeforeFinish() override {
    assembler_.reset();
    session_.reset();
  }

  CacheService* const service_;
  std::unique_ptr<PublishSession> session_;
  Identity caller_;
  std::optional<SliceAssembler> assembler_;  // set when `begin` has arrived
  grpc::ByteBuffer answer_;
  bool acknowledged_ = false;
};

}  // namespace

UploadStream* StartPublish(CacheService* service, grpc::CallbackServerContext* context) {
  return std::make_shared<PublishCall>(service, context)->Start();
}

}  // namespace hearth
