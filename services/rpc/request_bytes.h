// Parses requests on the pool's thread that does their work, because gRPC's threads answer health
// checks.
//
// Parsing a message of 3 MiB can create 1.5 million objects, which takes a long time and many times
// its size in memory. So the elements of a message are counted before any object is created. Thread
// safety: pure functions on their arguments.
#ifndef HEARTH_SERVICES_RPC_REQUEST_BYTES_H_
#define HEARTH_SERVICES_RPC_REQUEST_BYTES_H_

#include <google/protobuf/descriptor.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/caller_gone.h"

namespace hearth {

// Maximum number of elements of one message: nested messages, texts and unknown fields. An object
// in a publish has at least 18 bytes, so a message has at most 175,000 objects.
inline constexpr uint64_t kMaxElements = uint64_t{1} << 18;
// Maximum size in bytes of a request that only names an id and a tenant.
inline constexpr size_t kMaxSmallMessageBytes = size_t{64} << 10;

// kInvalidArgument if `buffer`, read as a message of `type`, has more than `most` elements. Does
// not check that the bytes are a valid message.
absl::Status CheckElements(const grpc::ByteBuffer& buffer, const google::protobuf::Descriptor& type,
                           uint64_t most = kMaxElements);

// kInvalidArgument if `buffer` is not a valid Message or has too many elements.
template <typename Message>
absl::Status ParseMessage(const grpc::ByteBuffer& buffer, Message* message,
                          uint64_t max_elements = kMaxElements) {
  const absl::Status few = CheckElements(buffer, *Message::descriptor(), max_elements);
  if (!few.ok()) return few;
  grpc::ByteBuffer shared(buffer);
  grpc::ProtoBufferReader reader(&shared);
  if (message->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("request is not a valid ", message->GetTypeName(), " message"));
}

// Calls ParseMessage on a pool's thread. kCancelled if the caller left while the job waited.
// `context`: the call's server context. Every pool job of a call begins with ParseAwaited.
template <typename Context, typename Message>
absl::Status ParseAwaited(const Context& context, const grpc::ByteBuffer& buffer,
                          Message* message) {
  if (context.IsCancelled()) return CallerGone();
  return ParseMessage(buffer, message);
}

// kInvalidArgument if `buffer` is too large for a Message that only names an id and a tenant.
template <typename Message>
absl::Status CheckSmall(const grpc::ByteBuffer& buffer) {
  if (buffer.Length() <= kMaxSmallMessageBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a ", Message::descriptor()->full_name(),
                                                 " must have at most ", kMaxSmallMessageBytes,
                                                 " bytes; got ", buffer.Length()));
}

// Calls CheckSmall, then ParseMessage.
template <typename Message>
absl::Status ParseSmallMessage(const grpc::ByteBuffer& buffer, Message* message) {
  const absl::Status small = CheckSmall<Message>(buffer);
  return small.ok() ? ParseMessage(buffer, message) : small;
}

// Takes the request from gRPC. gRPC would keep it until the call is done, which may take minutes.
inline grpc::ByteBuffer TakeRequest(const grpc::ByteBuffer* request) {
  grpc::ByteBuffer taken;
  taken.Swap(const_cast<grpc::ByteBuffer*>(request));
  return taken;
}

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_REQUEST_BYTES_H_
