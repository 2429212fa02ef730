#include "services/rpc/proto_conversion.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"

namespace hearth {
namespace {

Fingerprint SomeFingerprint() {
  absl::StatusOr<Fingerprint> fingerprint = Fingerprint::Create(
      {{"window", uint64_t{512}}, {"norm_epsilon", 1e-6}, {"kv_dtype", std::string("float32")}});
  EXPECT_TRUE(fingerprint.ok()) << fingerprint.status();
  return *fingerprint;
}

TEST(ProtoConversion, EnumsMatchProtobufEnums) {
  EXPECT_EQ(ToProto(Tier::kNone), v1::TIER_NONE);
  EXPECT_EQ(ToProto(Tier::kWorker), v1::TIER_WORKER);
  EXPECT_EQ(ToProto(Tier::kGpu), v1::TIER_GPU);
  EXPECT_EQ(ToProto(Tier::kHost), v1::TIER_HOST);
  EXPECT_EQ(ToProto(Tier::kDisk), v1::TIER_DISK);
  EXPECT_EQ(ToProto(Durability::kDefault), v1::DURABILITY_DEFAULT);
  EXPECT_EQ(ToProto(Durability::kMemory), v1::DURABILITY_MEMORY);
  EXPECT_EQ(ToProto(Durability::kDisk), v1::DURABILITY_DISK);
  EXPECT_EQ(ToProto(Durability::kSync), v1::DURABILITY_SYNC);
  EXPECT_EQ(ToProto(LayerGroup::kGlobal), v1::LAYER_GROUP_GLOBAL);
  EXPECT_EQ(ToProto(LayerGroup::kLocal), v1::LAYER_GROUP_LOCAL);
}

TEST(ProtoConversion, UnknownEnumIsRefusedExceptTier) {
  EXPECT_FALSE(FromProto(static_cast<v1::Durability>(9)).ok());
  EXPECT_FALSE(FromProto(static_cast<v1::LayerGroup>(9)).ok());
  EXPECT_EQ(FromProto(static_cast<v1::Tier>(9)), Tier::kNone);
}

TEST(ProtoConversion, FingerprintProtoRoundTrips) {
  const Fingerprint fingerprint = SomeFingerprint();
  v1::Fingerprint proto;
  ToProto(fingerprint, &proto);
  absl::StatusOr<Fingerprint> back = FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->digest(), fingerprint.digest());
  EXPECT_EQ(*DigestFromProto(proto), fingerprint.digest());
}

TEST(ProtoConversion, WrongFieldsDigestIsRefused) {
  v1::Fingerprint proto;
  ToProto(SomeFingerprint(), &proto);
  (*proto.mutable_digest())[7] ^= 1;
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(proto).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(DigestFromProto(proto).status()));
}

TEST(ProtoConversion, DigestAloneIsNoFingerprint) {
  v1::Fingerprint proto;
  DigestToProto(SomeFingerprint().digest(), &proto);
  EXPECT_EQ(*DigestFromProto(proto), SomeFingerprint().digest());
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(proto).status()));
  proto.set_digest("short");
  EXPECT_TRUE(absl::StrContains(DigestFromProto(proto).status().message(), "got 5"));
}

TEST(ProtoConversion, InvalidFingerprintFieldsAreRefused) {
  v1::Fingerprint proto;
  proto.add_fields()->set_name("empty");
  EXPECT_TRUE(absl::StrContains(FromProto(proto).status().message(), "\"empty\""));
  for (size_t i = 0; i < kMaxFingerprintFields + 1; ++i) proto.add_fields();
  EXPECT_TRUE(absl::StrContains(FromProto(proto).status().message(), "must have at most"));
}

TEST(ProtoConversion, ImpossibleObjectsAreRefused) {
  v1::ObjectRef ref;
  ref.set_begin(128);
  ref.set_tokens(128);
  EXPECT_TRUE(ObjectIdFromProto(ref).ok());
  ref.set_tokens(0);
  EXPECT_FALSE(ObjectIdFromProto(ref).ok());
  ref.set_tokens(kMaxChunkTokens + 1);
  EXPECT_FALSE(ObjectIdFromProto(ref).ok());
  ref.set_tokens(128);
  ref.set_begin(0xffffffff);
  EXPECT_FALSE(ObjectIdFromProto(ref).ok());
}

TEST(ProtoConversion, LayerIndexIsWithinGroup) {
  const std::vector<uint32_t> layers = {0, 1, 3};
  EXPECT_EQ(SliceIndex(layers, 0), 0);
  EXPECT_EQ(SliceIndex(layers, 3), 2);
  EXPECT_EQ(SliceIndex(layers, 2), -1);
  EXPECT_EQ(SliceIndex(layers, 4), -1);
}

TEST(ProtoConversion, OversizedMessageNamesLimit) {
  EXPECT_TRUE(CheckMessageBytes(kMaxMessageBytes).ok());
  const absl::Status status = CheckMessageBytes(kMaxMessageBytes + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_TRUE(absl::StrContains(status.message(), "3145728")) << status;
}

}  // namespace
}  // namespace hearth
