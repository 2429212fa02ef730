#include "services/inference/object_builder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "tests/services/store/small_layout.h"

namespace hearth {
namespace {

// Tokens of the prefix. Its objects: global layers [0,16), [16,32), [32,40), and local layers for
// the last 23 tokens.
constexpr uint32_t kObjectsTokens = 40;

std::vector<ObjectBuilder::Announced> Announced() {
  std::vector<ObjectBuilder::Announced> announced;
  for (const auto& object : SmallObjects(kObjectsTokens)) {
    announced.push_back({object->id, object->slice_digests});
  }
  return announced;
}

// Adds one slice of an object to the builder, in pieces of `piece` bytes.
absl::Status AddSlice(ObjectBuilder* builder, uint32_t index, size_t slice, size_t piece) {
  const auto object = SmallObjects(kObjectsTokens)[index];
  const size_t slice_bytes = SmallLayout().SliceBytes(object->id.tokens);
  const uint32_t layer = SmallLayout().LayersOf(object->id.group)[slice];
  const char* bytes = reinterpret_cast<const char*>(object->bytes.get()) + slice * slice_bytes;
  for (size_t at = 0; at < slice_bytes; at += piece) {
    absl::Status status =
        builder->Add(index, layer, at, {bytes + at, std::min(piece, slice_bytes - at)});
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

TEST(ObjectBuilder, SlicesJoinInAnyOrder) {
  for (size_t piece : {size_t{1} << 20, size_t{100}}) {
    auto builder = ObjectBuilder::Create(SmallLayout(), kObjectsTokens, Announced());
    ASSERT_TRUE(builder.ok()) << builder.status();
    const auto expected = SmallObjects(kObjectsTokens);
    for (size_t index = expected.size(); index-- > 0;) {
      for (size_t slice = expected[index]->slice_digests.size(); slice-- > 0;) {
        ASSERT_TRUE(AddSlice(&*builder, index, slice, piece).ok());
      }
    }
    auto objects = builder->Take();
    ASSERT_TRUE(objects.ok()) << objects.status();
    ASSERT_EQ(objects->size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(SameBytes(*(*objects)[i], *expected[i])) << i;
    }
  }
}

TEST(ObjectBuilder, InterleavedPiecesAreVerified) {
  for (const bool wrong : {false, true}) {
    auto announced = Announced();
    if (wrong) announced[1].slice_digests[0] ^= 1;
    auto builder = ObjectBuilder::Create(SmallLayout(), kObjectsTokens, announced);
    ASSERT_TRUE(builder.ok());
    const auto objects = SmallObjects(kObjectsTokens);
    const size_t slice_bytes = SmallLayout().SliceBytes(16), half = slice_bytes / 2;
    const uint32_t layer = SmallLayout().LayersOf(LayerGroup::kGlobal)[0];
    absl::Status status;
    for (const size_t at : {size_t{0}, half}) {
      for (const uint32_t index : {0u, 1u}) {
        ASSERT_TRUE(status.ok()) << status;
        const char* bytes = reinterpret_cast<const char*>(objects[index]->bytes.get());
        status = builder->Add(index, layer, at, {bytes + at, at == 0 ? half : slice_bytes - half});
      }
    }
    EXPECT_EQ(absl::IsDataLoss(status), wrong) << status;
  }
}

TEST(ObjectBuilder, UnhashedBytesAreVerified) {
  auto announced = Announced();
  announced[0].slice_digests[0] ^= 1;
  auto builder = ObjectBuilder::Create(SmallLayout(), kObjectsTokens, announced);
  ASSERT_TRUE(builder.ok());
  for (const uint32_t index : {1u, 0u}) {
    const size_t slice_bytes = SmallLayout().SliceBytes(16);
    const uint32_t layer = SmallLayout().LayersOf(LayerGroup::kGlobal)[0];
    const absl::StatusOr<std::byte*> to = builder->Place({index, layer, 0}, slice_bytes);
    ASSERT_TRUE(to.ok());
    std::memcpy(*to, SmallObjects(kObjectsTokens)[index]->bytes.get(), slice_bytes);
    EXPECT_EQ(absl::IsDataLoss(builder->PutPiece()), index == 0);
  }
}

TEST(ObjectBuilder, MismatchedPlanIsRefused) {
  auto announced = Announced();
  announced.pop_back();
  EXPECT_FALSE(ObjectBuilder::Create(SmallLayout(), kObjectsTokens, announced).ok());
  announced = Announced();
  std::swap(announced[0], announced[1]);
  EXPECT_FALSE(ObjectBuilder::Create(SmallLayout(), kObjectsTokens, announced).ok());
  announced = Announced();
  announced[0].slice_digests.push_back(0);
  EXPECT_FALSE(ObjectBuilder::Create(SmallLayout(), kObjectsTokens, announced).ok());
  EXPECT_FALSE(ObjectBuilder::Create(SmallLayout(), kObjectsTokens + 16, Announced()).ok());
}

TEST(ObjectBuilder, MisplacedPieceIsRefused) {
  auto builder = ObjectBuilder::Create(SmallLayout(), kObjectsTokens, Announced());
  ASSERT_TRUE(builder.ok());
  const std::string slice(SmallLayout().SliceBytes(16), 'x');
  EXPECT_TRUE(absl::IsFailedPrecondition(builder->Add(99, 1, 0, slice)));
  EXPECT_TRUE(absl::IsFailedPrecondition(builder->Add(0, 0, 0, slice))) << "a local layer";
  EXPECT_TRUE(absl::IsFailedPrecondition(builder->Add(0, 77, 0, slice)));
  EXPECT_TRUE(absl::IsFailedPrecondition(builder->Add(0, 1, 1, slice.substr(1)))) << "a gap";
  EXPECT_TRUE(absl::IsFailedPrecondition(builder->Add(0, 1, 0, slice + "x"))) << "too long";
  EXPECT_TRUE(absl::IsFailedPrecondition(builder->Add(0, 1, 0, ""))) << "nothing";
  ASSERT_TRUE(AddSlice(&*builder, 0, 0, slice.size()).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(builder->Add(0, 1, 0, slice))) << "a second time";
}

TEST(ObjectBuilder, WrongSliceDigestIsDataLoss) {
  auto announced = Announced();
  announced[1].slice_digests[0] ^= 1;
  auto builder = ObjectBuilder::Create(SmallLayout(), kObjectsTokens, announced);
  ASSERT_TRUE(builder.ok());
  EXPECT_TRUE(absl::IsDataLoss(AddSlice(&*builder, 1, 0, 100)));
}

TEST(ObjectBuilder, ReservedSliceIsFilledOnce) {
  auto builder = ObjectBuilder::Create(SmallLayout(), kObjectsTokens, Announced());
  ASSERT_TRUE(builder.ok());
  const size_t slice_bytes = SmallLayout().SliceBytes(16);
  const auto reserved = builder->Reserve(0, 1);
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  EXPECT_EQ(reserved->bytes, slice_bytes);
  EXPECT_EQ(reserved->digest, Announced()[0].slice_digests[0]);
  EXPECT_EQ(builder->bytes_added(), 0u);
  EXPECT_TRUE(absl::IsFailedPrecondition(builder->Reserve(0, 1).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(AddSlice(&*builder, 0, 0, slice_bytes)));
  EXPECT_TRUE(absl::IsDataLoss(builder->PutReserved(*reserved, reserved->digest ^ 1)));
  EXPECT_EQ(builder->bytes_added(), 0u);
  EXPECT_TRUE(builder->PutReserved(*reserved, reserved->digest).ok());
  EXPECT_EQ(builder->bytes_added(), slice_bytes);
  EXPECT_TRUE(absl::IsFailedPrecondition(builder->Reserve(0, 1).status()));
  // some of its bytes arrived
  ASSERT_TRUE(builder->Add(1, 1, 0, std::string(10, 'x')).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(builder->Reserve(1, 1).status()));
}

TEST(ObjectBuilder, UnknownSliceIsNotReserved) {
  auto builder = ObjectBuilder::Create(SmallLayout(), kObjectsTokens, Announced());
  ASSERT_TRUE(builder.ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(builder->Reserve(99, 1).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(builder->Reserve(0, 0).status())) << "a local layer";
  EXPECT_TRUE(absl::IsFailedPrecondition(builder->Reserve(0, 77).status()));
}

TEST(ObjectBuilder, UnfilledReservedSliceIsDataLoss) {
  auto builder = ObjectBuilder::Create(SmallLayout(), kObjectsTokens, Announced());
  ASSERT_TRUE(builder.ok());
  const auto reserved = builder->Reserve(0, 1);
  ASSERT_TRUE(reserved.ok());
  const auto objects = SmallObjects(kObjectsTokens);
  for (size_t index = 0; index < objects.size(); ++index) {
    for (size_t slice = 0; slice < objects[index]->slice_digests.size(); ++slice) {
      if (index == 0 && slice == 0) continue;
      ASSERT_TRUE(AddSlice(&*builder, index, slice, 100).ok());
    }
  }
  EXPECT_FALSE(builder->complete());
  EXPECT_TRUE(absl::IsDataLoss(builder->Take().status()));
  std::memcpy(reserved->to, objects[0]->bytes.get(), reserved->bytes);
  EXPECT_TRUE(builder->PutReserved(*reserved, reserved->digest).ok());
  const auto taken = builder->Take();
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_TRUE(SameBytes(*(*taken)[0], *objects[0]));
}

TEST(ObjectBuilder, TruncatedStreamIsDataLoss) {
  auto builder = ObjectBuilder::Create(SmallLayout(), kObjectsTokens, Announced());
  ASSERT_TRUE(builder.ok());
  ASSERT_TRUE(AddSlice(&*builder, 0, 0, 100).ok());
  EXPECT_TRUE(absl::IsDataLoss(builder->Take().status()));
}

}  // namespace
}  // namespace hearth
