#include "services/inference/remote_prefix_cache.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <cassert>
#include <limits>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "services/inference/blocking_stream.h"
#include "services/inference/plan_check.h"
#include "services/rpc/proto_conversion.h"
#include "services/rpc/slice_wire.h"
#include "services/rpc/status_conversion.h"
#include "services/serving/logging.h"

namespace hearth {
namespace {

// The store's word that a wait has ended has this long to arrive.
constexpr absl::Duration kWaitSlack = absl::Milliseconds(250);

uint32_t WireMs(absl::Duration duration) {
  return static_cast<uint32_t>(
      std::min<int64_t>(absl::ToInt64Milliseconds(duration), std::numeric_limits<uint32_t>::max()));
}

using ByteCall = BlockingStream<grpc::ByteBuffer, grpc::ByteBuffer>;

// Sends one object's slices in pieces, from where they lie. False when the stream is broken.
bool SendObject(const std::shared_ptr<const KvObject>& object, const KvLayout& layout,
                uint32_t index, ByteCall* stream) {
  const size_t slice_bytes = layout.SliceBytes(object->id.tokens);
  absl::Span<const std::byte> rest(object->bytes.get(), object->size_bytes);
  for (uint32_t layer : layout.LayersOf(object->id.group)) {
    for (size_t offset = 0; offset < slice_bytes; offset += kMaxSlicePieceBytes) {
      const auto piece = rest.subspan(offset, std::min(kMaxSlicePieceBytes, slice_bytes - offset));
      if (!stream->Write(SliceMessage({index, layer, offset}, object, piece))) return false;
    }
    rest.remove_prefix(slice_bytes);
  }
  assert(rest.empty());
  return true;
}

// A lease, which is open for as long as this is there.
struct HeldLease : StoreStream, ComputeLease {
  using StoreStream::StoreStream;
};

absl::Status ReadTurn(ByteCall* stream, v1::LeaseResponse* turn) {
  grpc::ByteBuffer bytes;
  if (stream->Read(&bytes)) return ParseMessage(bytes, turn);
  absl::Status failed = FromGrpcStatus(stream->Finish());
  return failed.ok() ? absl::DataLossError("the lease ended before its answer") : failed;
}

}  // namespace

struct RemotePrefixCache::Explains {
  // Counts as under way for as long as it lives.
  class Ticket {
   public:
    explicit Ticket(std::shared_ptr<Explains> all) : all_(std::move(all)) {
      absl::MutexLock lock(&all_->mu);
      ++all_->under_way;
    }
    ~Ticket() {
      absl::MutexLock lock(&all_->mu);
      assert(all_->under_way > 0);
      --all_->under_way;
    }
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

   private:
    const std::shared_ptr<Explains> all_;
  };
  absl::Mutex mu;
  int under_way ABSL_GUARDED_BY(mu) = 0;
};

std::shared_ptr<RemotePrefixCache::Explains> RemotePrefixCache::MakeExplains() {
  return std::make_shared<Explains>();
}

// A call's context holds the channel. The last to let go of a channel must not be gRPC's own
// thread, which would wait for itself to end; so no call is left when the cache goes.
RemotePrefixCache::~RemotePrefixCache() {
  connection_.calls()->CancelAll();
  absl::MutexLock lock(&explains_->mu);
  const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(explains_->mu) {
    return explains_->under_way == 0;
  };
  explains_->mu.Await(absl::Condition(&none));
}

RemotePrefixCache::RemotePrefixCache(std::shared_ptr<grpc::Channel> channel,
                                     const Fingerprint& fingerprint, const KvLayout& layout,
                                     CacheCounters* counters, SharedMemoryUse shared_memory,
                                     std::unique_ptr<DeviceClient> devices, Clock* clock)
    : counters_(counters),
      layout_(layout),
      connection_(std::move(channel), fingerprint, clock),
      fetches_(&connection_, layout, counters, shared_memory, std::move(devices)) {}

// An offer, what the store lacks of it, a commit.
absl::StatusOr<PublishOutcome> RemotePrefixCache::TryPublish(const PublishRequestSpec& spec,
                                                             absl::Time deadline) {
  if (absl::Status status = connection_.CheckReachable(deadline); !status.ok()) return status;
  v1::PublishRequest message;
  v1::PublishBegin* begin = message.mutable_begin();
  connection_.ToProto(spec.prefix, /*with_fields=*/true, begin->mutable_prefix());
  begin->mutable_boundaries()->Add(spec.boundaries.begin(), spec.boundaries.end());
  begin->set_durability(ToProto(spec.durability));
  begin->set_ttl_s(spec.ttl_s);
  for (const auto& object : spec.objects) {
    v1::ObjectRef* ref = begin->add_objects();
    ToProto(object->id, ref);
    ref->mutable_slice_digests()->Add(object->slice_digests.begin(), object->slice_digests.end());
    ref->set_absent(object->bytes == nullptr);
  }
  if (absl::Status status = CheckMessageBytes(message.ByteSizeLong()); !status.ok()) return status;

  // An early return cancels the call.
  StoreStream call(&connection_, "Publish", spec.prefix, deadline, deadline);
  ByteCall& stream = call.stream;
  const auto finish = [&](const char* ended_early) {
    absl::Status status = FromGrpcStatus(stream.Finish());
    return status.ok() ? absl::DataLossError(ended_early) : status;
  };

  grpc::ByteBuffer answer;
  v1::PublishResponse response;
  if (!stream.Write(MessageBytes(message)) || !stream.Read(&answer)) {
    return finish("publish: the stream ended before its plan");
  }
  if (!ParseMessage(answer, &response).ok() || !response.has_plan()) {
    return absl::DataLossError("publish: the stream began without a plan");
  }
  PublishOutcome outcome;
  const v1::PublishPlan plan = response.plan();
  for (uint32_t index : plan.needed()) {
    if (index >= spec.objects.size() || spec.objects[index]->bytes == nullptr) {
      return absl::DataLossError("publish: the store asked for an object that was not offered");
    }
    if (!SendObject(spec.objects[index], layout_, index, &stream)) {
      return finish("publish: the stream ended before the commit");
    }
    outcome.bytes_sent += spec.objects[index]->size_bytes;
  }
  message.mutable_commit();
  if (!stream.WriteLast(MessageBytes(message)) || !stream.Read(&answer)) {
    return finish("publish: the stream ended before its ack");
  }
  if (!ParseMessage(answer, &response).ok() || !response.has_ack()) {
    return absl::DataLossError("publish: no ack where one was due");
  }
  if (absl::Status status = FromGrpcStatus(stream.Finish()); !status.ok()) return status;
  ReadAck(response.ack(), &outcome);
  return outcome;
}

LeaseOutcome RemotePrefixCache::Lease(const PrefixRequest& prefix, uint32_t above_tokens,
                                      uint32_t max_tokens, const LeaseTerms& terms,
                                      absl::Time deadline) {
  bool waited = false;
  auto outcome = TryLease(prefix, above_tokens, max_tokens, terms, deadline, &waited);
  return counters_->EndLease(std::move(outcome), waited);
}

absl::StatusOr<LeaseOutcome> RemotePrefixCache::TryLease(const PrefixRequest& prefix,
                                                         uint32_t above_tokens, uint32_t max_tokens,
                                                         const LeaseTerms& terms,
                                                         absl::Time deadline, bool* waited) {
  v1::LeaseRequest request;
  connection_.ToProto(prefix, /*with_fields=*/true, request.mutable_prefix());
  request.set_above_tokens(above_tokens);
  request.set_max_tokens(max_tokens);
  request.set_min_tokens(terms.min_tokens);
  request.set_lease_ms(WireMs(terms.lease));
  request.set_wait_ms(WireMs(terms.wait));
  if (absl::Status status = connection_.CheckReachable(deadline); !status.ok()) return status;
  if (absl::Status status = CheckMessageBytes(request.ByteSizeLong()); !status.ok()) return status;
  const auto lease =
      std::make_shared<HeldLease>(&connection_, "Lease", prefix, deadline,
                                  deadline + terms.wait + kWaitSlack + terms.lease, prefix.stop);
  lease->stream.WriteLast(MessageBytes(request));
  v1::LeaseResponse answer;
  if (absl::Status status = ReadTurn(&lease->stream, &answer); !status.ok()) return status;
  if (answer.turn() == v1::LeaseResponse::WAIT) {
    *waited = true;
    lease->stream.SetPatience(absl::Now() + terms.wait + kWaitSlack);
    if (absl::Status status = ReadTurn(&lease->stream, &answer); !status.ok()) return status;
  }
  LeaseOutcome outcome;
  outcome.usable_tokens = answer.usable_tokens();
  outcome.matched_tokens = answer.matched_tokens();
  if (answer.turn() == v1::LeaseResponse::COMPUTE) outcome.lease = lease;
  return outcome;
}

bool RemotePrefixCache::Quarantine(const PrefixRequest& prefix,
                                   const std::vector<ObjectId>& objects, absl::Time deadline) {
  v1::QuarantineRequest request;
  connection_.ToProto(prefix, /*with_fields=*/false, request.mutable_prefix());
  for (const ObjectId& id : objects) ToProto(id, request.add_objects());
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  const CallSet::Entry active(connection_.calls(), &context);
  v1::QuarantineResponse response;
  const absl::Status status =
      FromGrpcStatus(connection_.stub()->Quarantine(&context, request, &response));
  Log(LogLevel::kWarning, "an audit found other bytes in the store than this worker computes",
      {{"tenant", prefix.tenant},
       {"tokens", prefix.token_ids.size()},
       {"objects", objects.size()},
       {"quarantined", status.ok() ? std::to_string(response.objects()) : status.ToString()}});
  return status.ok();
}

void RemotePrefixCache::Explain(PrefixRequest prefix, absl::Time deadline, ExplainCallback done) {
  struct Call {
    Call(std::shared_ptr<Explains> all, CallSet* calls)
        : ticket(std::move(all)), entry(calls, &context) {}

    Explains::Ticket ticket;  // goes last
    grpc::ClientContext context;
    CallSet::Entry entry;
    v1::ExplainRequest request;
    v1::ExplainResponse response;
    ExplainCallback done;
  };
  auto call = std::make_shared<Call>(explains_, connection_.calls());
  call->done = std::move(done);
  call->context.set_deadline(absl::ToChronoTime(deadline));
  connection_.ToProto(prefix, /*with_fields=*/true, call->request.mutable_prefix());
  grpc::ClientContext* context = &call->context;
  const v1::ExplainRequest* request = &call->request;
  v1::ExplainResponse* response = &call->response;
  connection_.stub()->async()->Explain(context, request, response,
                                       [call = std::move(call)](grpc::Status status) {
                                         call->done(FromGrpcStatus(status), call->response);
                                       });
}

}  // namespace hearth
