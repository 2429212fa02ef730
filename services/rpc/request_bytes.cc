#include "services/rpc/request_bytes.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

namespace hearth {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// Maximum number of levels of nested messages that are counted. Hearth's own messages have fewer
// levels, and protobuf refuses 100.
constexpr int kMaxDepth = 16;

class ElementCount {
 public:
  ElementCount(CodedInputStream* in, uint64_t most) : in_(in), most_(most) {}

  // Counts the elements of a message of `type`. Returns false if there are too many. If the bytes
  // are not such a message, stops and returns true, because the parser refuses them.
  bool Count(const Descriptor* type, int depth) {
    while (const uint32_t tag = in_->ReadTag()) {
      const FieldDescriptor* field =
          type == nullptr ? nullptr
                          : type->FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
      if (!CountField(tag, field, depth)) return false;
      if (stopped_) return true;
    }
    return true;
  }

 private:
  static bool IsKnown(const FieldDescriptor* field, WireFormatLite::WireType wire) {
    if (field == nullptr) return false;
    const auto type = static_cast<WireFormatLite::FieldType>(field->type());
    return WireFormatLite::WireTypeForFieldType(type) == wire;
  }
  bool CountField(uint32_t tag, const FieldDescriptor* field, int depth) {
    const auto wire = WireFormatLite::GetTagWireType(tag);
    if (wire == WireFormatLite::WIRETYPE_START_GROUP) ++groups_;
    if (groups_ > 0) field = nullptr;
    if (wire == WireFormatLite::WIRETYPE_END_GROUP && groups_ > 0) --groups_;
    if (wire != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      // Hearth's messages have no groups. So a group and all fields in it are unknown, and each tag
      // counts as an element, whatever its number.
      if (!IsKnown(field, wire) && ++elements_ > most_) return false;
      if (wire == WireFormatLite::WIRETYPE_VARINT) {
        uint64_t value = 0;
        stopped_ = !in_->ReadVarint64(&value);
      } else if (wire == WireFormatLite::WIRETYPE_FIXED64) {
        stopped_ = !in_->Skip(8);
      } else if (wire == WireFormatLite::WIRETYPE_FIXED32) {
        stopped_ = !in_->Skip(4);
      }
      return true;
    }
    uint32_t bytes = 0;
    if (!in_->ReadVarint32(&bytes)) {
      stopped_ = true;
      return true;
    }
    const bool is_packed = field != nullptr && field->is_packable();
    if (!is_packed && ++elements_ > most_) return false;
    const bool is_message =
        field != nullptr && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (!is_message || depth == kMaxDepth) {
      stopped_ = !in_->Skip(static_cast<int>(bytes));
      return true;
    }
    const CodedInputStream::Limit limit = in_->PushLimit(static_cast<int>(bytes));
    const bool fits = Count(field->message_type(), depth + 1);
    in_->PopLimit(limit);
    return fits;
  }

  CodedInputStream* const in_;
  const uint64_t most_;
  uint64_t elements_ = 0;
  int groups_ = 0;  // number of open groups around the current field
  bool stopped_ = false;
};

}  // namespace

absl::Status CheckElements(const grpc::ByteBuffer& buffer, const Descriptor& type, uint64_t most) {
  if (buffer.Length() <= most) return absl::OkStatus();  // an element takes at least two bytes
  grpc::ByteBuffer shared(buffer);
  grpc::ProtoBufferReader reader(&shared);
  CodedInputStream in(&reader);
  if (ElementCount(&in, most).Count(&type, 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a ", type.full_name(), " must have at most ", most, " elements; got more"));
}

}  // namespace hearth
