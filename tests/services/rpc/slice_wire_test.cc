// Slice messages that Hearth writes are ordinary protobuf, and slice messages of any protobuf
// library are copied directly to their destination.
#include "services/rpc/slice_wire.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "proto/cache_store.pb.h"
#include "proto/kv_layout.h"

namespace hearth {
namespace {

struct Taken {
  SliceHeader header;
  std::string data;
  bool asked = false;
  SliceHasher hasher = {};
};

// Reads `buffer` as a FetchResponse. The data of a slice goes to `taken`.
absl::Status Take(grpc::ByteBuffer buffer, v1::FetchResponse* other, Taken* taken) {
  return TakeMessage(
      &buffer, other, &taken->hasher,
      [taken](const SliceHeader& header, size_t bytes) -> absl::StatusOr<std::byte*> {
        taken->asked = true;
        taken->header = header;
        taken->data.resize(bytes);
        return reinterpret_cast<std::byte*>(taken->data.data());
      });
}

// Returns `bytes` as gRPC may deliver them: divided into pieces of `piece` bytes.
grpc::ByteBuffer Pieces(const std::string& bytes, size_t piece) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += piece) slices.emplace_back(bytes.substr(at, piece));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Bytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

grpc::ByteBuffer Message(const SliceHeader& header, const std::string& data) {
  auto owner = std::make_shared<std::string>(data);
  const absl::Span<const std::byte> piece(reinterpret_cast<const std::byte*>(owner->data()),
                                          owner->size());
  return SliceMessage(header, owner, piece);
}

const SliceHeader kHeaders[] = {{0, 0, 0}, {1, 2, 3}, {300, 61, 1 << 20}, {~0u, ~0u, ~uint64_t{0}}};

TEST(SliceWire, ProtobufReadsWrittenSlices) {
  for (const SliceHeader& header : kHeaders) {
    const std::string data(1000, 'd');
    const std::string bytes = Bytes(Message(header, data));
    v1::FetchResponse fetched;
    v1::PublishRequest published;
    ASSERT_TRUE(fetched.ParseFromString(bytes) && published.ParseFromString(bytes));
    ASSERT_TRUE(fetched.has_slice() && published.has_slice());
    EXPECT_EQ(fetched.slice().object(), header.object);
    EXPECT_EQ(fetched.slice().layer(), header.layer);
    EXPECT_EQ(fetched.slice().offset(), header.offset);
    EXPECT_EQ(fetched.slice().data(), data);
    EXPECT_EQ(bytes, fetched.SerializeAsString()) << "the same bytes as protobuf's own";
  }
}

TEST(SliceWire, FragmentedSlicesAreRead) {
  for (const SliceHeader& header : kHeaders) {
    v1::FetchResponse message;
    message.mutable_slice()->set_object(header.object);
    message.mutable_slice()->set_layer(header.layer);
    message.mutable_slice()->set_offset(header.offset);
    std::string data(3 * kHashBlockBytes + 5, 'q');
    data[kHashBlockBytes] = 'r';
    message.mutable_slice()->set_data(data);
    const std::string bytes = message.SerializeAsString();
    for (const size_t piece : {size_t{7}, size_t{100}, kHashBlockBytes, bytes.size()}) {
      Taken taken;
      v1::FetchResponse other;
      ASSERT_TRUE(Take(Pieces(bytes, piece), &other, &taken).ok());
      EXPECT_EQ(taken.header.object, header.object);
      EXPECT_EQ(taken.header.layer, header.layer);
      EXPECT_EQ(taken.header.offset, header.offset);
      EXPECT_EQ(taken.data, data);
      EXPECT_EQ(taken.hasher.digest(), SliceDigest(data.data(), data.size()));
      EXPECT_EQ(other.message_case(), v1::FetchResponse::MESSAGE_NOT_SET);
    }
  }
}

TEST(SliceWire, ReadsFieldsInAnyOrder) {
  // The fields data, layer, object: valid protobuf, in an order that no library writes.
  const std::string inner = std::string(
                                "\x22\x03"
                                "abc") +
                            "\x10\x05" + "\x08\x09";
  const std::string bytes = std::string("\x12") + static_cast<char>(inner.size()) + inner;
  Taken taken;
  v1::FetchResponse other;
  ASSERT_TRUE(Take(Pieces(bytes, 4), &other, &taken).ok());
  EXPECT_EQ(taken.data, "abc");
  EXPECT_EQ(taken.hasher.digest(), SliceDigest("abc", 3));
  EXPECT_EQ(taken.header.object, 9u);
  EXPECT_EQ(taken.header.layer, 5u);
}

TEST(SliceWire, MessagesWithoutSliceAreParsed) {
  v1::FetchResponse plan;
  plan.mutable_plan()->set_usable_tokens(128);
  Taken taken;
  v1::FetchResponse other;
  ASSERT_TRUE(Take(MessageBytes(plan), &other, &taken).ok());
  EXPECT_FALSE(taken.asked);
  EXPECT_EQ(other.plan().usable_tokens(), 128u);
  // no bytes are a valid, empty message
  ASSERT_TRUE(Take(grpc::ByteBuffer(), &other, &taken).ok());
  EXPECT_EQ(other.message_case(), v1::FetchResponse::MESSAGE_NOT_SET);
}

TEST(SliceWire, EveryTruncationIsRefused) {
  const std::string bytes = Bytes(Message({300, 61, 1 << 20}, std::string(200, 'd')));
  for (size_t length = 1; length < bytes.size(); ++length) {
    Taken taken;
    v1::FetchResponse other;
    EXPECT_FALSE(Take(Pieces(bytes.substr(0, length), 64), &other, &taken).ok()) << length;
    EXPECT_FALSE(taken.asked) << length;
  }
}

TEST(SliceWire, FlippedHeaderBitsDoNotCrash) {
  const std::string bytes = Bytes(Message({300, 61, 1 << 20}, std::string(200, 'd')));
  for (size_t at = 0; at < 20; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = bytes;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      Taken taken;
      v1::FetchResponse other;
      // The message may be accepted or refused, but no more data may be taken than it has.
      const absl::Status status = Take(Pieces(flipped, 64), &other, &taken);
      EXPECT_LE(taken.data.size(), bytes.size()) << status;
    }
  }
}

TEST(SliceWire, PlacementErrorIsReturned) {
  grpc::ByteBuffer message = Message({1, 2, 3}, "abc");
  v1::FetchResponse other;
  const absl::Status status = TakeMessage(
      &message, &other, nullptr, [](const SliceHeader&, size_t) -> absl::StatusOr<std::byte*> {
        return absl::InvalidArgumentError("no place");
      });
  EXPECT_EQ(status, absl::InvalidArgumentError("no place"));
}

TEST(SliceWire, MessageKeepsPieceAlive) {
  auto owner = std::make_shared<std::string>(100000, 'x');
  const std::weak_ptr<std::string> watch = owner;
  const absl::Span<const std::byte> piece(reinterpret_cast<const std::byte*>(owner->data()),
                                          owner->size());
  grpc::ByteBuffer message = SliceMessage({}, std::move(owner), piece);
  grpc::ByteBuffer copy = message;
  message.Clear();
  EXPECT_FALSE(watch.expired());
  copy.Clear();
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace hearth
