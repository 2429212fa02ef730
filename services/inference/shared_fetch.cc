#include "services/inference/shared_fetch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/rpc/proto_conversion.h"

namespace hearth {
namespace {

// Slices of a store's segment, and the call that keeps them from being used again.
class SegmentLoan final : public Loan {
 public:
  SegmentLoan(std::shared_ptr<const MappedSegment> segment, std::shared_ptr<void> lease)
      : segment_(std::move(segment)), lease_(std::move(lease)) {}

  bool Holds() const override {
    return std::all_of(ranges_.begin(), ranges_.end(),
                       [this](const auto& range) { return segment_->Check(range).ok(); });
  }
  // Where the slice lies. kAborted: it was used again already; kDataLoss: it has another digest.
  absl::StatusOr<const std::byte*> Verify(const SegmentRange& range, uint64_t digest) {
    if (absl::Status status = segment_->Check(range); !status.ok()) return status;
    const std::byte* slice = segment_->At(range);
    const bool same = SliceDigest(slice, range.bytes) == digest;
    if (absl::Status status = segment_->Check(range); !status.ok()) return status;
    if (!same) {
      return absl::DataLossError("shared memory: a slice does not have the plan's digest");
    }
    ranges_.push_back(range);
    return slice;
  }

 private:
  const std::shared_ptr<const MappedSegment> segment_;
  const std::shared_ptr<void> lease_;
  std::vector<SegmentRange> ranges_;  // constant once the loan is shared
};

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

// The places in `shared` of each slice of every whole object: by object, by slice. Empty where not
// all are there.
std::vector<std::vector<int>> WholeObjects(const v1::SharedSlices& shared, const KvLayout& layout,
                                           const std::vector<ObjectBuilder::Announced>& announced) {
  std::vector<std::vector<int>> places(announced.size());
  const std::vector<uint32_t> layers[] = {layout.LayersOf(LayerGroup::kGlobal),
                                          layout.LayersOf(LayerGroup::kLocal)};
  for (int i = 0; i < shared.objects_size(); ++i) {
    const uint32_t object = shared.objects(i);
    if (object >= announced.size()) continue;
    const ObjectId& id = announced[object].id;
    const bool local = id.group == LayerGroup::kLocal;
    if (id.tokens != layout.chunk_tokens || (!local && id.group != LayerGroup::kGlobal)) continue;
    const int slice = SliceIndex(layers[local ? 1 : 0], shared.layers(i));
    if (slice < 0 || announced[object].slice_digests.size() != layers[local ? 1 : 0].size()) {
      continue;  // the builder will refuse it
    }
    places[object].resize(announced[object].slice_digests.size(), -1);
    places[object][slice] = i;
  }
  for (std::vector<int>& slices : places) {
    if (std::count(slices.begin(), slices.end(), -1) > 0) slices.clear();
  }
  return places;
}

}  // namespace

absl::Status LendShared(const v1::SharedSlices& shared, const KvLayout& layout,
                        std::shared_ptr<const MappedSegment> segment, std::shared_ptr<void> lease,
                        std::vector<ObjectBuilder::Announced>* announced) {
  if (absl::Status status = CheckShared(shared, *segment); !status.ok()) return status;
  const auto loan = std::make_shared<SegmentLoan>(std::move(segment), std::move(lease));
  const std::vector<std::vector<int>> places = WholeObjects(shared, layout, *announced);
  for (size_t object = 0; object < places.size(); ++object) {
    ObjectBuilder::Announced& lent = (*announced)[object];
    if (places[object].empty() || lent.device_bytes != nullptr) continue;
    const uint64_t slice_bytes = layout.SliceBytes(lent.id.tokens);
    for (size_t slice = 0; slice < places[object].size(); ++slice) {
      const int i = places[object][slice];
      const absl::StatusOr<const std::byte*> at = loan->Verify(
          {shared.offsets(i), slice_bytes, shared.generations(i)}, lent.slice_digests[slice]);
      if (!at.ok()) return at.status();
      lent.lent_slices.push_back(*at);
    }
    lent.loan = loan;
  }
  return absl::OkStatus();
}

absl::Status CopyShared(const v1::SharedSlices& shared, const MappedSegment& segment,
                        ObjectBuilder* builder) {
  if (absl::Status status = CheckShared(shared, segment); !status.ok()) return status;
  for (int i = 0; i < shared.objects_size(); ++i) {
    if (builder->lent(shared.objects(i))) continue;
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
