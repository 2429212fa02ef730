#include "services/rpc/slice_wire.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "proto/cache_store.pb.h"
#include "services/rpc/proto_conversion.h"

namespace hearth {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr uint32_t Tag(int field, WireFormatLite::WireType type) {
  return WireFormatLite::MakeTag(field, type);
}
constexpr uint32_t kSliceTag =
    Tag(v1::FetchResponse::kSliceFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
static_assert(int{v1::FetchResponse::kSliceFieldNumber} == v1::PublishRequest::kSliceFieldNumber);
constexpr uint32_t kObjectTag =
    Tag(v1::SliceData::kObjectFieldNumber, WireFormatLite::WIRETYPE_VARINT);
constexpr uint32_t kLayerTag =
    Tag(v1::SliceData::kLayerFieldNumber, WireFormatLite::WIRETYPE_VARINT);
constexpr uint32_t kOffsetTag =
    Tag(v1::SliceData::kOffsetFieldNumber, WireFormatLite::WIRETYPE_VARINT);
constexpr uint32_t kDataTag =
    Tag(v1::SliceData::kDataFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);

// Five tags of one byte, two lengths, two u32 and one u64, all numbers as varints of the largest
// size.
constexpr size_t kMaxHeaderBytes = 5 + 2 * 5 + 2 * 5 + 10;

uint8_t* WriteField(uint32_t tag, uint64_t value, uint8_t* out) {
  if (value == 0) return out;  // proto3 omits a field with its default value
  out = CodedOutputStream::WriteTagToArray(tag, out);
  return CodedOutputStream::WriteVarint64ToArray(value, out);
}

void Forget(void* owner) { delete static_cast<std::shared_ptr<const void>*>(owner); }

// Reads the header's fields, each at most once and before the data, and then the size of the data.
// Returns false if the message has any other form.
bool ReadHeader(CodedInputStream* in, size_t message_bytes, SliceHeader* header, uint32_t* bytes) {
  uint32_t inner = 0;
  if (in->ReadTag() != kSliceTag || !in->ReadVarint32(&inner)) return false;
  if (in->CurrentPosition() + size_t{inner} != message_bytes) return false;
  uint32_t last_tag = 0;
  for (;;) {
    const uint32_t tag = in->ReadTag();
    if (tag <= last_tag) return false;
    last_tag = tag;
    bool read = false;
    if (tag == kObjectTag) {
      read = in->ReadVarint32(&header->object);
    } else if (tag == kLayerTag) {
      read = in->ReadVarint32(&header->layer);
    } else if (tag == kOffsetTag) {
      read = in->ReadVarint64(&header->offset);
    } else if (tag == kDataTag) {
      return in->ReadVarint32(bytes) && in->CurrentPosition() + size_t{*bytes} == message_bytes;
    }
    if (!read) return false;
  }
}

}  // namespace

grpc::ByteBuffer SliceMessage(const SliceHeader& header, std::shared_ptr<const void> owner,
                              absl::Span<const std::byte> piece) {
  assert(piece.size() <= kMaxSlicePieceBytes);
  uint8_t fields[kMaxHeaderBytes];
  uint8_t* end = WriteField(kObjectTag, header.object, fields);
  end = WriteField(kLayerTag, header.layer, end);
  end = WriteField(kOffsetTag, header.offset, end);
  end = CodedOutputStream::WriteTagToArray(kDataTag, end);
  end = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(piece.size()), end);
  const size_t field_bytes = static_cast<size_t>(end - fields);

  assert(field_bytes <= sizeof(fields));
  uint8_t front[kMaxHeaderBytes + 6];
  end = CodedOutputStream::WriteTagToArray(kSliceTag, front);
  end = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(field_bytes + piece.size()),
                                                end);
  std::memcpy(end, fields, field_bytes);
  end += field_bytes;
  assert(static_cast<size_t>(end - front) <= sizeof(front));
  const grpc::Slice slices[2] = {
      grpc::Slice(front, static_cast<size_t>(end - front)),
      // const_cast: gRPC only reads the bytes
      grpc::Slice(const_cast<std::byte*>(piece.data()), piece.size(), &Forget,
                  new std::shared_ptr<const void>(std::move(owner)))};
  return grpc::ByteBuffer(slices, 2);
}

absl::StatusOr<bool> TakeSlice(grpc::ByteBuffer* message, SliceHasher* hasher, SlicePlace place) {
  grpc::ProtoBufferReader reader(message);
  if (!reader.status().ok()) return false;
  CodedInputStream in(&reader);
  SliceHeader header;
  uint32_t bytes = 0;
  if (!ReadHeader(&in, message->Length(), &header, &bytes)) return false;
  const absl::StatusOr<std::byte*> to = place(header, bytes);
  if (!to.ok()) return to.status();
  const size_t step = hasher == nullptr ? bytes : kHashBlockBytes;
  for (size_t at = 0; at < bytes; at += step) {
    const size_t block = std::min(step, bytes - at);
    const bool read = in.ReadRaw(*to + at, static_cast<int>(block));
    assert(read);  // cannot fail: the lengths were checked
    if (!read) return absl::DataLossError("a slice is cut short");
    if (hasher != nullptr) hasher->Add(*to + at, block);
  }
  return true;
}

}  // namespace hearth
