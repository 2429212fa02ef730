#include "services/inference/shared_fetch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/rpc/proto_conversion.h"

namespace hearth {
namespace {

absl::Status CheckShared(const v1::SharedSlices& shared, const MappedSegment& segment) {
  if (segment.layout().device.has_value()) {
    return absl::FailedPreconditionError("plan: slices of the host in a device's segment");
  }
  const int slices = shared.objects_size();
  if (shared.layers_size() == slices && shared.offsets_size() == slices &&
      shared.generations_size() == slices) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError("plan: the shared slices' lists differ in length");
}

}  // namespace

absl::Status CopyShared(const v1::SharedSlices& shared, const MappedSegment& segment,
                        ObjectBuilder* builder) {
  if (absl::Status status = CheckShared(shared, segment); !status.ok()) return status;
  for (int i = 0; i < shared.objects_size(); ++i) {
    const SliceHeader header{shared.objects(i), shared.layers(i), 0};
    const absl::StatusOr<size_t> bytes = builder->SliceBytes(header.object);
    if (!bytes.ok()) return bytes.status();
    const absl::StatusOr<std::byte*> to = builder->Place(header, *bytes);
    if (!to.ok()) return to.status();
    absl::Status status =
        segment.Copy({shared.offsets(i), *bytes, shared.generations(i)}, *to, builder->hasher());
    if (status.ok()) status = builder->PutPiece();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

namespace {

template <typename Client>
absl::Status Take(const v1::SharedSegment& offer, Client* client) {
  SegmentId id;
  if (offer.id().size() != id.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("plan: segment.id has ", offer.id().size(), " bytes"));
  }
  std::copy(offer.id().begin(), offer.id().end(), id.begin());
  return client->MapOffered(offer.socket(), id);
}

}  // namespace

absl::Status TakeOffer(const v1::SharedSegment& offer, SegmentClient* client) {
  return Take(offer, client);
}

absl::Status TakeOffer(const v1::SharedSegment& offer, DeviceClient* client) {
  return Take(offer, client);
}

absl::Status CopyFromDevice(const v1::SharedSlices& shared, const KvLayout& layout,
                            const MappedDevice& device, DeviceClient* client,
                            std::vector<ObjectBuilder::Announced>* announced) {
  const int objects = shared.objects_size();
  if (shared.offsets_size() != objects || shared.generations_size() != objects) {
    return absl::FailedPreconditionError("plan: the device objects' lists differ in length");
  }
  std::vector<SegmentRange> ranges;
  for (int i = 0; i < objects; ++i) {
    if (shared.objects(i) >= announced->size()) {
      return absl::FailedPreconditionError(
          absl::StrCat("plan: device object ", shared.objects(i), " of ", announced->size()));
    }
    const ObjectId& id = (*announced)[shared.objects(i)].id;
    ranges.push_back(
        {shared.offsets(i), layout.ObjectBytes(id.tokens, id.group), shared.generations(i)});
  }
  auto copies = client->Copy(device, ranges);
  if (!copies.ok()) return copies.status();
  for (int i = 0; i < objects; ++i) {
    (*announced)[shared.objects(i)].device_bytes = std::move((*copies)[i]);
  }
  return absl::OkStatus();
}

const char* FallbackReason(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kAborted:
      return "reused";
    case absl::StatusCode::kDataLoss:
      return "corrupt";
    case absl::StatusCode::kUnavailable:
      return "unreachable";  // another host or user, or no socket there
    default:
      return "error";
  }
}

}  // namespace hearth
