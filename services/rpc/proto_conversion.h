// The contract's values as protobuf messages, and back: enums, fingerprints, objects, states.
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

// The largest message of both APIs. gRPC's own limit is higher (kMaxGrpcMessageBytes), so that the
// error for a message a little too large names this one.
inline constexpr size_t kMaxMessageBytes = size_t{3} << 20;
inline constexpr int kMaxGrpcMessageBytes = 4 << 20;
// Slices travel in pieces of at most this size: large enough that a message costs little beside its
// bytes, small enough that three fit the limit above.
inline constexpr size_t kMaxSlicePieceBytes = size_t{1} << 20;

v1::Tier ToProto(Tier tier);
v1::Durability ToProto(Durability durability);
v1::LayerGroup ToProto(LayerGroup group);
// An unknown tier reads as kNone: a newer peer may know more tiers, and nothing depends on it.
Tier FromProto(v1::Tier tier);
absl::StatusOr<Durability> FromProto(v1::Durability durability);
absl::StatusOr<LayerGroup> FromProto(v1::LayerGroup group);

void DigestToProto(const Digest& digest, v1::Fingerprint* out);
void ToProto(const Fingerprint& fingerprint, v1::Fingerprint* out);
// REQUIRES on the wire: fields. The digest is recomputed; one that was sent must agree.
absl::StatusOr<Fingerprint> FromProto(const v1::Fingerprint& proto);
// The digest alone; when fields were sent too, they must agree with it.
absl::StatusOr<Digest> DigestFromProto(const v1::Fingerprint& proto);

void ToProto(const ObjectId& id, v1::ObjectRef* out);
absl::StatusOr<ObjectId> ObjectIdFromProto(const v1::ObjectRef& proto);

// The index of a slice in its object: that of `layer` among the layers of its group; -1 if absent.
int SliceIndex(const std::vector<uint32_t>& group_layers, uint32_t layer);

absl::Status CheckMessageBytes(size_t bytes);
// kInvalidArgument: a field has a value that its enum does not.
absl::Status UnknownValue(const char* field, int value, int last);

// What is beyond the limits counts as them.
template <typename Message>
KeepHint HintFromProto(const Message& proto) {
  return {std::min<uint32_t>(proto.keep_s(), kMaxKeepSeconds),
          std::clamp<int32_t>(proto.priority(), -kMaxPriority, kMaxPriority)};
}

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_PROTO_CONVERSION_H_
