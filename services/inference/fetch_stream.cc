#include "services/inference/fetch_stream.h"

#include <optional>

#include "absl/time/clock.h"
#include "services/rpc/slice_wire.h"

namespace hearth {

std::vector<ObjectBuilder::Announced> AnnouncedObjects(const v1::FetchPlan& plan) {
  std::vector<ObjectBuilder::Announced> announced;
  announced.reserve(plan.objects_size());
  for (const v1::ObjectRef& object : plan.objects()) {
    // An unknown group gives an id that no boundary needs: Create refuses it.
    announced.push_back({{object.begin(), object.tokens(), static_cast<LayerGroup>(object.group())},
                         {object.slice_digests().begin(), object.slice_digests().end()}});
  }
  return announced;
}

namespace {

absl::Status CutOff(LoadTrial* load, uint64_t bytes_received) {
  load->OnCutOff(bytes_received);
  return absl::AbortedError("the transfer became slower than computing");
}

}  // namespace

absl::Status ReadSlices(FetchStream* stream, bool stays_open, LoadTrial* load,
                        ObjectBuilder* builder, uint64_t* bytes_received) {
  grpc::ByteBuffer bytes;
  v1::FetchResponse message;
  for (;;) {
    if (stays_open && builder->complete()) return absl::OkStatus();
    const std::optional<absl::Duration> patience = load->Patience(*bytes_received);
    if (patience.has_value() && !builder->complete()) {
      if (*patience == absl::ZeroDuration()) return CutOff(load, *bytes_received);
      stream->SetPatience(absl::Now() + *patience);
    }
    if (!stream->Read(&bytes)) {
      if (patience.has_value() && stream->late()) return CutOff(load, *bytes_received);
      if (stream->late()) load->OnCutOff(*bytes_received, LoadDecision::kMiss);
      return absl::OkStatus();
    }
    const absl::Status taken = TakeMessage(&bytes, &message, builder->hasher(),
                                           [builder](const SliceHeader& header, size_t data_bytes) {
                                             return builder->Place(header, data_bytes);
                                           });
    if (!taken.ok()) return taken;
    if (message.has_plan()) return absl::DataLossError("a second plan in one stream");
    if (absl::Status put = builder->PutPiece(); !put.ok()) return put;
    *bytes_received = builder->bytes_added();
  }
}

}  // namespace hearth
