// The parsed form of a request is limited, whatever bytes it has.
#include "services/rpc/request_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "proto/cache_store.pb.h"
#include "services/rpc/slice_wire.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

grpc::ByteBuffer InSlices(const std::string& bytes, size_t slice_bytes) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += slice_bytes) {
    slices.emplace_back(bytes.substr(at, slice_bytes));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

absl::Status CountIn(const std::string& bytes, uint64_t most, size_t slice_bytes = 1000) {
  return CheckElements(InSlices(bytes, slice_bytes), *v1::ExplainRequest::descriptor(), most);
}

// Returns a serialized ExplainRequest whose fingerprint has `fields` empty fields.
std::string WithFields(int fields) {
  v1::ExplainRequest request;
  for (int i = 0; i < fields; ++i) {
    request.mutable_prefix()->mutable_fingerprint()->add_fields();
  }
  return request.SerializeAsString();
}

TEST(RequestBytes, NestedMessagesAreCounted) {
  EXPECT_TRUE(CountIn(WithFields(98), 100).ok());
  const absl::Status refused = CountIn(WithFields(99), 100);
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at most 100 elements"));
  EXPECT_FALSE(CountIn(WithFields(99), 100, 1).ok()) << "in slices of one byte";
}

TEST(RequestBytes, NumberFieldsAreNotCounted) {
  v1::ExplainRequest request;
  for (int i = 0; i < 5000; ++i) request.mutable_prefix()->add_token_ids(i);
  EXPECT_TRUE(CountIn(request.SerializeAsString(), 100).ok());
  std::string loose;  // an unpacked repeated field, which any encoder may write
  for (int i = 0; i < 200; ++i) loose += std::string("\x10\x05", 2);
  const std::string prefix = std::string("\x0a\x90\x03", 3) + loose;
  v1::ExplainRequest parsed;
  ASSERT_TRUE(parsed.ParseFromString(prefix));
  EXPECT_EQ(parsed.prefix().token_ids_size(), 200);
  EXPECT_TRUE(CountIn(prefix, 100).ok());
}

TEST(RequestBytes, UnknownFieldsAreCounted) {
  std::string numbers, groups, texts, other_wire;
  for (int i = 0; i < 101; ++i) {
    numbers += std::string("\x78\x01", 2);     // unknown field 15, a number
    groups += std::string("\x7b\x7c", 2);      // unknown field 15, an empty group
    texts += std::string("\x7a\x00", 2);       // unknown field 15, an empty text
    other_wire += std::string("\x08\x01", 2);  // field 1, which is a message, sent as a number
  }
  for (const std::string& bytes : {numbers, groups, texts, other_wire}) {
    EXPECT_FALSE(CountIn(bytes, 100).ok());
    EXPECT_TRUE(CountIn(bytes, 1000).ok());
  }
}

TEST(RequestBytes, GroupFieldsHaveNoKnownType) {
  // Field 1 is a message in the schema, but inside an unknown group it may have any type. The
  // fields after it are still read.
  const std::string cut_varint = std::string("\x7b\x0a\x01\x08\x7c", 5);
  EXPECT_FALSE(CountIn(cut_varint + WithFields(99), 100).ok());
  std::string packed = "\x7b";
  for (int i = 0; i < 101; ++i) packed += std::string("\x12\x00", 2);
  EXPECT_FALSE(CountIn(packed + "\x7c", 100).ok());
}

TEST(RequestBytes, InvalidBytesAreLeftToParser) {
  for (const std::string& bytes :
       {std::string(200, '\xff'), std::string("\x0a\xff\xff\xff\xff\x0f") + std::string(200, 0),
        std::string("\x0a\x7f\x0a"), WithFields(50).substr(0, 90)}) {
    EXPECT_TRUE(CountIn(bytes, 60).ok());
    v1::ExplainRequest parsed;
    const absl::Status status = ParseMessage(InSlices(bytes, 7), &parsed);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("is not a valid hearth.v1.ExplainRequest"));
  }
}

TEST(RequestBytes, SmallRequestLimitIsEnforced) {
  v1::ListRequest request, parsed;
  request.set_tenant("a");
  EXPECT_TRUE(ParseSmallMessage(MessageBytes(request), &parsed).ok());
  EXPECT_EQ(parsed.tenant(), "a");
  request.set_tenant(std::string(kMaxSmallMessageBytes, 'a'));
  const absl::Status refused = ParseSmallMessage(MessageBytes(request), &parsed);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("must have at most 65536 bytes"));
}

TEST(RequestBytes, CancelledRequestIsNotParsed) {
  struct {
    bool IsCancelled() const { return is_cancelled; }
    bool is_cancelled;
  } caller{true};
  v1::ListRequest request, parsed;
  request.set_tenant("a");
  EXPECT_EQ(ParseAwaited(caller, MessageBytes(request), &parsed).code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(parsed.tenant(), "");
  caller.is_cancelled = false;
  EXPECT_TRUE(ParseAwaited(caller, MessageBytes(request), &parsed).ok());
  EXPECT_EQ(parsed.tenant(), "a");
}

TEST(RequestBytes, TakeRequestEmptiesTheBuffer) {
  grpc::ByteBuffer request = InSlices("abc", 1);
  EXPECT_EQ(TakeRequest(&request).Length(), 3u);
  EXPECT_FALSE(request.Valid());
}

}  // namespace
}  // namespace hearth
