#include "services/fetch_stream.h"

#include "services/slice_wire.h"

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

absl::Status ReadSlices(FetchStream* stream, bool stays_open, ObjectBuilder* builder,
                        uint64_t* bytes_received) {
  grpc::ByteBuffer bytes;
  v1::FetchResponse message;
  while (!(stays_open && builder->complete()) && stream->Read(&bytes)) {
    const absl::Status taken = TakeMessage(&bytes, &message, builder->hasher(),
                                           [builder](const SliceHeader& header, size_t data_bytes) {
                                             return builder->Place(header, data_bytes);
                                           });
    if (!taken.ok()) return taken;
    if (message.has_plan()) return absl::DataLossError("a second plan in one stream");
    if (absl::Status put = builder->PutPiece(); !put.ok()) return put;
    *bytes_received = builder->bytes_added();
  }
  return absl::OkStatus();
}

}  // namespace hearth
