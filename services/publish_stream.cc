#include "services/publish_stream.h"

#include <memory>
#include <utility>

#include "proto/cache_store.grpc.pb.h"  // how messages are serialised
#include "services/slice_stream.h"
#include "services/store_conversion.h"

namespace hearth {
namespace {

using Stream = grpc::ServerReaderWriter<v1::PublishResponse, v1::PublishRequest>;

// Reads slices up to the commit.
absl::Status TakeSlices(SliceAssembler* assembler, Stream* stream) {
  v1::PublishRequest message;
  while (stream->Read(&message)) {
    switch (message.message_case()) {
      case v1::PublishRequest::kSlice:
        if (absl::Status status = assembler->Add(message.mutable_slice()); !status.ok()) {
          return status;
        }
        break;
      case v1::PublishRequest::kCommit:
        return assembler->Finish();
      default:
        return absl::InvalidArgumentError("publish: expected a slice or the commit");
    }
  }
  return absl::CancelledError("publish: the stream ended before its commit");
}

}  // namespace

absl::Status ServePublish(TieredStore* store, Stream* stream) {
  v1::PublishRequest message;
  if (!stream->Read(&message)) {
    return absl::CancelledError("publish: the stream ended before its begin");
  }
  if (!message.has_begin()) {
    return absl::InvalidArgumentError("publish: the first message must be begin");
  }
  absl::StatusOr<PublishSpec> spec = SpecFromProto(message.begin());
  if (!spec.ok()) return spec.status();
  message.Clear();
  absl::StatusOr<KvLayout> layout = spec->fingerprint.Layout();
  if (!layout.ok()) return layout.status();

  absl::StatusOr<std::unique_ptr<PublishSession>> session = store->Publish(*spec);
  if (!session.ok()) return session.status();
  v1::PublishResponse response;
  v1::PublishPlan* plan = response.mutable_plan();
  plan->mutable_needed()->Add((*session)->needed().begin(), (*session)->needed().end());
  if (!stream->Write(response)) return absl::CancelledError("the caller went away");

  SliceAssembler assembler(*spec, *layout, session->get());
  if (absl::Status status = TakeSlices(&assembler, stream); !status.ok()) return status;
  absl::StatusOr<PublishResult> result = (*session)->Commit();
  if (!result.ok()) return result.status();
  ResultToProto(*result, response.mutable_ack());
  stream->Write(response);
  return absl::OkStatus();
}

}  // namespace hearth
