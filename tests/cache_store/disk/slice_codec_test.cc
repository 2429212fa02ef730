#include "cache_store/disk/slice_codec.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace hearth {
namespace {

// Numbers like those of KV: of one magnitude, with noise in their low bits.
std::vector<std::byte> Numbers(size_t count, uint32_t element_bytes, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 2);
  std::vector<std::byte> bytes(count * element_bytes);
  for (size_t i = 0; i < count; ++i) {
    const float value = normal(random);
    uint32_t word = 0;
    std::memcpy(&word, &value, 4);
    if (element_bytes == 2) word >>= 16;  // bfloat16
    std::memcpy(bytes.data() + i * element_bytes, &word, element_bytes);
  }
  return bytes;
}

std::vector<std::byte> Noise(size_t bytes) {
  std::mt19937_64 random(7);
  std::vector<std::byte> noise(bytes);
  for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
  return noise;
}

class SliceCodec : public ::testing::TestWithParam<uint32_t> {};

TEST_P(SliceCodec, GivesBackEveryBitAndSavesATenth) {
  for (const size_t count : {size_t{1000}, size_t{4095}, size_t{65536}, size_t{100001}}) {
    const std::vector<std::byte> slice = Numbers(count, GetParam(), count);
    const auto encoded = EncodeSlice(slice, GetParam());
    ASSERT_TRUE(encoded.has_value()) << count;
    EXPECT_LE(encoded->bytes.size(), 0.9 * slice.size());
    ASSERT_TRUE(IsEncodedSlice(encoded->bytes, slice.size()));
    const auto decoded = DecodeSlice(encoded->bytes, slice.size());
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    ASSERT_EQ(decoded->bytes.size(), slice.size());
    EXPECT_EQ(std::memcmp(decoded->bytes.data(), slice.data(), slice.size()), 0);
  }
}

TEST_P(SliceCodec, LeavesNoiseAndWhatIsTooShortAlone) {
  EXPECT_FALSE(EncodeSlice(Noise(1 << 16), GetParam()).has_value());
  EXPECT_FALSE(EncodeSlice(Numbers(4, GetParam()), GetParam()).has_value());
  EXPECT_FALSE(EncodeSlice({}, GetParam()).has_value());
  EXPECT_FALSE(EncodeSlice(Noise(4097), GetParam()).has_value()) << "no whole elements";
}

TEST_P(SliceCodec, ASampleThatFlattersCostsNothingButTime) {
  // Every element that the sample meets is zero, all others are noise.
  const uint32_t width = GetParam();
  std::vector<std::byte> slice = Noise(size_t{65536} * width);
  const size_t stride = (65536 / 4096 - 1) | 1;
  for (size_t i = 0; i < 4096; ++i) std::memset(slice.data() + i * stride * width, 0, width);
  const auto encoded = EncodeSlice(slice, width);
  if (!encoded.has_value()) return;
  EXPECT_LE(encoded->bytes.size(), 0.9 * slice.size());
}

TEST_P(SliceCodec, DamageIsToldOrGivesOtherBytesAndNeverMore) {
  const std::vector<std::byte> slice = Numbers(600, GetParam());
  const auto encoded = EncodeSlice(slice, GetParam());
  ASSERT_TRUE(encoded.has_value());
  const std::vector<std::byte> good(encoded->bytes.begin(), encoded->bytes.end());
  size_t told = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      std::vector<std::byte> bad = good;
      bad[at] ^= static_cast<std::byte>(1 << bit);
      if (!IsEncodedSlice(bad, slice.size())) continue;  // then its size gives it away
      const auto decoded = DecodeSlice(bad, slice.size());
      if (!decoded.ok()) {
        EXPECT_TRUE(absl::IsDataLoss(decoded.status())) << decoded.status();
        ++told;
      } else {
        EXPECT_EQ(decoded->bytes.size(), slice.size());
      }
    }
  }
  EXPECT_GT(told, 0u);
  for (size_t size = 16; size < good.size(); ++size) {
    const auto torn = DecodeSlice(absl::MakeSpan(good).subspan(0, size), slice.size());
    EXPECT_TRUE(absl::IsDataLoss(torn.status())) << size;
  }
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{0});
  EXPECT_TRUE(absl::IsDataLoss(DecodeSlice(longer, slice.size()).status()));
}

TEST_P(SliceCodec, AnotherSlicesBytesAreRefusedBySize) {
  const std::vector<std::byte> slice = Numbers(600, GetParam());
  const auto encoded = EncodeSlice(slice, GetParam());
  ASSERT_TRUE(encoded.has_value());
  EXPECT_TRUE(absl::IsDataLoss(DecodeSlice(encoded->bytes, 2 * slice.size()).status()));
}

INSTANTIATE_TEST_SUITE_P(Widths, SliceCodec, ::testing::Values(2u, 4u));

TEST(SliceCodecHeader, RandomBytesBehindTheMagicNeverCrash) {
  const std::vector<std::byte> slice = Numbers(600, 4);
  const auto encoded = EncodeSlice(slice, 4);
  ASSERT_TRUE(encoded.has_value());
  std::mt19937_64 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes(encoded->bytes.begin(), encoded->bytes.end());
    bytes.resize(16 + random() % (bytes.size() - 16));
    for (int i = 0; i < 6; ++i) {
      bytes[4 + random() % (std::min<size_t>(bytes.size(), 64) - 4)] =
          static_cast<std::byte>(random());
    }
    DecodeSlice(bytes, slice.size()).status().IgnoreError();
  }
}

TEST(SliceCodecHeader, UnknownElementSizesAreLeftAloneAndRefused) {
  EXPECT_FALSE(EncodeSlice(Numbers(600, 4), 8).has_value());
  const std::vector<std::byte> slice = Numbers(600, 4);
  const auto encoded = EncodeSlice(slice, 4);
  std::vector<std::byte> bytes(encoded->bytes.begin(), encoded->bytes.end());
  bytes[4] = std::byte{3};
  EXPECT_TRUE(absl::IsDataLoss(DecodeSlice(bytes, slice.size()).status()));
}

}  // namespace
}  // namespace hearth
