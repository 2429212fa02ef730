// RemotePrefixCache's publishes: an offer, what the store lacks of it, a commit.
#include <grpcpp/client_context.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "services/inference/blocking_stream.h"
#include "services/inference/plan_check.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/rpc/proto_conversion.h"
#include "services/rpc/request_id.h"
#include "services/rpc/slice_wire.h"
#include "services/rpc/status_conversion.h"

namespace hearth {
namespace {

using PublishStream = BlockingStream<grpc::ByteBuffer, grpc::ByteBuffer>;
constexpr char kPublishMethod[] = "/hearth.v1.CacheStore/Publish";

// Sends one object's slices in pieces, from where they lie. False when the stream is broken.
bool SendObject(const std::shared_ptr<const KvObject>& object, const KvLayout& layout,
                uint32_t index, PublishStream* stream) {
  const size_t slice_bytes = layout.SliceBytes(object->id.tokens);
  absl::Span<const std::byte> rest(object->bytes.get(), object->size_bytes);
  for (uint32_t layer : layout.LayersOf(object->id.group)) {
    for (size_t offset = 0; offset < slice_bytes; offset += kMaxSlicePieceBytes) {
      const auto piece = rest.subspan(offset, std::min(kMaxSlicePieceBytes, slice_bytes - offset));
      if (!stream->Write(SliceMessage({index, layer, offset}, object, piece))) return false;
    }
    rest.remove_prefix(slice_bytes);
  }
  return true;
}

}  // namespace

PublishOutcome RemotePrefixCache::Publish(const PublishRequestSpec& spec, absl::Time deadline) {
  absl::StatusOr<PublishOutcome> outcome = TryPublish(spec, deadline);
  NoteStore(outcome.status());
  if (outcome.ok()) {
    counters_->CountPublish(outcome->published_tokens > 0 ? "stored" : "nothing",
                            outcome->bytes_sent);
    return *std::move(outcome);
  }
  counters_->CountPublish(FailureOutcome(outcome.status()));
  PublishOutcome nothing;
  nothing.note = std::string(outcome.status().message());
  return nothing;
}

absl::StatusOr<PublishOutcome> RemotePrefixCache::TryPublish(const PublishRequestSpec& spec,
                                                             absl::Time deadline) {
  if (absl::Status status = CheckReachable(deadline); !status.ok()) return status;
  v1::PublishRequest message;
  v1::PublishBegin* begin = message.mutable_begin();
  PrefixToProto(spec.prefix, /*with_fields=*/true, begin->mutable_prefix());
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

  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  SendRequestId(spec.prefix.request_id, &context);
  const CallSet::Entry active(&calls_, &context);
  // An early return cancels the call.
  PublishStream stream(channel_, kPublishMethod, &context);
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

}  // namespace hearth
