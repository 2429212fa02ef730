// Slices on the wire without unnecessary copies: writes messages around memory that another object
// owns, and reads messages directly into their destination.
//
// Both FetchResponse and PublishRequest have a SliceData as field 2. SliceMessage writes ordinary
// protobuf that is valid for both types. TakeMessage reads messages that any protobuf library
// wrote. Thread safety: pure functions on their arguments.
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

// The fields of a SliceData that come before its data bytes.
struct SliceHeader {
  uint32_t object = 0;
  uint32_t layer = 0;
  uint64_t offset = 0;
};

// Returns a message with `piece` as its data. gRPC reads `piece` in place; `owner` keeps it alive
// until gRPC has sent it. REQUIRES: piece.size() <= kMaxSlicePieceBytes.
grpc::ByteBuffer SliceMessage(const SliceHeader& header, std::shared_ptr<const void> owner,
                              absl::Span<const std::byte> piece);

// Returns the bytes of a protobuf message.
template <typename Message>
grpc::ByteBuffer MessageBytes(const Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

// Returns where to copy the `bytes` data bytes of a slice; or the error that refuses the slice.
using SlicePlace =
    absl::FunctionRef<absl::StatusOr<std::byte*>(const SliceHeader& header, size_t bytes)>;

// Copies the data of a slice message to the address that `place` returns, and adds it to `hasher`
// unless `hasher` is null. Returns false, without calling `place`, unless the message has the form
// that protobuf libraries write, with its fields in order. Returns the error of `place`.
absl::StatusOr<bool> TakeSlice(grpc::ByteBuffer* message, SliceHasher* hasher, SlicePlace place);

// Reads one message of type v1::FetchResponse or v1::PublishRequest. A slice is copied to the
// address that `place` returns and added to `hasher`, unless `hasher` is null; `other` then stays
// empty. Any other message is parsed into `other`. kInvalidArgument if the bytes are not a valid
// Message or have too many elements.
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
