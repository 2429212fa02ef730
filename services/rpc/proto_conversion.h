// Converts the values of the API to protobuf messages and back: enums, fingerprints, objects,
// states.
//
// Messages are validated: kInvalidArgument names the field and the limit.
// Thread safety: pure functions.
#ifndef HEARTH_SERVICES_RPC_PROTO_CONVERSION_H_
#define HEARTH_SERVICES_RPC_PROTO_CONVERSION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cache_store.pb.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"

namespace hearth {

// Size limit of messages of both APIs, worker and store. gRPC's own limit is higher
// (kMaxGrpcMessageBytes), so that a slightly larger message gets an error that names this limit.
inline constexpr size_t kMaxMessageBytes = size_t{3} << 20;
inline constexpr int kMaxGrpcMessageBytes = 4 << 20;
// Slices are sent in pieces of at most this size: large enough that a message's overhead is small,
// small enough that three pieces fit kMaxMessageBytes.
inline constexpr size_t kMaxSlicePieceBytes = size_t{1} << 20;

v1::Tier ToProto(Tier tier);
v1::Durability ToProto(Durability durability);
v1::LayerGroup ToProto(LayerGroup group);
// Returns kNone for an unknown tier: a newer peer may have more tiers, and nothing depends on the
// tier.
Tier FromProto(v1::Tier tier);
absl::StatusOr<Durability> FromProto(v1::Durability durability);
absl::StatusOr<LayerGroup> FromProto(v1::LayerGroup group);

void DigestToProto(const Digest& digest, v1::Fingerprint* out);
void ToProto(const Fingerprint& fingerprint, v1::Fingerprint* out);
// kInvalidArgument if `proto` has no readable fields. If `proto` also has a digest, it must be the
// digest of the fields.
absl::StatusOr<Fingerprint> FromProto(const v1::Fingerprint& proto);
// Returns the digest of a fingerprint. If its readable fields were sent too, they must have this
// digest.
absl::StatusOr<Digest> DigestFromProto(const v1::Fingerprint& proto);

void ToProto(const ObjectId& id, v1::ObjectRef* out);
absl::StatusOr<ObjectId> ObjectIdFromProto(const v1::ObjectRef& proto);

// Returns the index of a slice in its object: the index of `layer` in `group_layers`; -1 if absent.
int SliceIndex(const std::vector<uint32_t>& group_layers, uint32_t layer);

// Returns why a boundary of Explain cannot be used, as text for people; empty if it can be used.
std::string WhyUnusable(const v1::BoundaryInfo& boundary);

absl::Status CheckMessageBytes(size_t bytes);
// Returns kInvalidArgument for an enum field whose number is not one of the enum's values.
absl::Status UnknownValue(const char* field, int value, int last);

// Clamps values that exceed the limits.
template <typename Message>
KeepHint HintFromProto(const Message& proto) {
  return {std::min<uint32_t>(proto.keep_s(), kMaxKeepSeconds),
          std::clamp<int32_t>(proto.priority(), -kMaxPriority, kMaxPriority)};
}

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_PROTO_CONVERSION_H_
