// Slices on the wire without needless copies: writes messages around memory that another owns, and
// reads them straight into their final place.
//
// A FetchResponse and a PublishRequest both carry a SliceData as field 2. SliceMessage writes
// ordinary protobuf of either; TakeMessage reads messages of any protobuf library. Thread safety:
// pure functions on their arguments.
#ifndef HEARTH_SERVICES_RPC_SLICE_WIRE_H_
#define HEARTH_SERVICES_RPC_SLICE_WIRE_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/slice_hasher.h"
#include "services/rpc/request_bytes.h"

namespace hearth {

// The fields of a SliceData before its bytes.
struct SliceHeader {
  uint32_t object = 0;
  uint32_t layer = 0;
  uint64_t offset = 0;
};

// A message with `piece` as its data, which stays `owner`'s memory until gRPC has sent it.
// REQUIRES: piece.size() <= kMaxSlicePieceBytes.
grpc::ByteBuffer SliceMessage(const SliceHeader& header, std::shared_ptr<const void> owner,
                              absl::Span<const std::byte> piece);

// The bytes of an ordinary message.
template <typename Message>
grpc::ByteBuffer MessageBytes(const Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

// The destination of a slice's `bytes` data bytes, or an error if they are not wanted.
using SlicePlace =
    absl::FunctionRef<absl::StatusOr<std::byte*>(const SliceHeader& header, size_t bytes)>;

// Copies a message's data to the address from `place`, and adds it to `hasher` if there is one. The
// message must have the form that protobuf libraries write, fields in order; else it returns False
// without a call of `place`. An error is `place`'s.
absl::StatusOr<bool> TakeSlice(grpc::ByteBuffer* message, SliceHasher* hasher, SlicePlace place);

// Reads one message. A slice goes to `place`, and into `hasher` if there is one, and leaves `other`
// empty; anything else is parsed into `other`. kInvalidArgument when it is not a Message, or has
// more elements.
// Message: v1::FetchResponse, v1::PublishRequest.
template <typename Message>
absl::Status TakeMessage(grpc::ByteBuffer* buffer, Message* other, SliceHasher* hasher,
                         SlicePlace place, uint64_t max_elements = kMaxElements) {
  other->Clear();
  const absl::StatusOr<bool> taken = TakeSlice(buffer, hasher, place);
  if (!taken.ok() || *taken) return taken.status();
  const absl::Status parsed = ParseMessage(*buffer, other, max_elements);
  if (!parsed.ok()) return parsed;
  if (!other->has_slice()) return absl::OkStatus();
  const auto& slice = other->slice();
  const absl::StatusOr<std::byte*> to =
      place({slice.object(), slice.layer(), slice.offset()}, slice.data().size());
  if (!to.ok()) return to.status();
  std::memcpy(*to, slice.data().data(), slice.data().size());
  if (hasher != nullptr) hasher->Add(*to, slice.data().size());
  other->Clear();
  return absl::OkStatus();
}

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_SLICE_WIRE_H_
