#include "proto/segment_format.h"

#include <gtest/gtest.h>

#include <numeric>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"

namespace hearth {
namespace {

SegmentLayout ThreeMiB() {
  SegmentLayout layout;
  std::iota(layout.id.begin(), layout.id.end(), uint8_t{1});
  layout.data_bytes = 3 << 20;
  return layout;
}

TEST(SegmentFormat, HeaderHasFixedBytes) {
  const std::string header = EncodeSegmentHeader(ThreeMiB());
  ASSERT_EQ(header.size(), 4096u);
  EXPECT_EQ(absl::BytesToHexString(header.substr(0, 56)),
            "68656172"
            "74687365676d656e740d0a1a"          // magic
            "01000000"                          // version
            "00100000"                          // granule
            "0000300000000000"                  // data bytes
            "0000200000000000"                  // data offset
            "0102030405060708090a0b0c0d0e0f10"  // id
  );
  EXPECT_EQ(header.substr(56), std::string(4096 - 56, '\0'));
}

TEST(SegmentFormat, HeaderRoundTrips) {
  const SegmentLayout layout = ThreeMiB();
  const auto read = ParseSegmentHeader(EncodeSegmentHeader(layout), layout.file_bytes());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->id, layout.id);
  EXPECT_EQ(read->data_bytes, layout.data_bytes);
  EXPECT_EQ(read->data_offset(), layout.data_offset());
}

TEST(SegmentFormat, DeviceSegmentFileHasHandleWithoutData) {
  SegmentLayout layout = ThreeMiB();
  DeviceMemoryHandle& handle = layout.device.emplace();
  std::iota(handle.device.begin(), handle.device.end(), uint8_t{0x40});
  handle.bytes = 4 << 20;
  const std::string header = EncodeSegmentHeader(layout);
  EXPECT_EQ(header[16], 3);
  EXPECT_EQ(absl::BytesToHexString(header.substr(56, 24)),
            "404142434445464748494a4b4c4d4e4f"  // device
            "0000400000000000");                // bytes on the device
  EXPECT_EQ(header.substr(80), std::string(4096 - 80, '\0'));
  EXPECT_EQ(layout.file_bytes(), layout.data_offset());
  const auto read = ParseSegmentHeader(header, layout.file_bytes());
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_TRUE(read->device.has_value());
  EXPECT_EQ(read->device->device, handle.device);
  EXPECT_EQ(read->device->bytes, handle.bytes);
  layout.device->bytes = layout.data_bytes - 1;  // the data does not fit
  EXPECT_FALSE(ParseSegmentHeader(EncodeSegmentHeader(layout), layout.file_bytes()).ok());
  EXPECT_FALSE(ParseSegmentHeader(header, ThreeMiB().file_bytes()).ok());
  EXPECT_FALSE(ParseSegmentHeader(header.substr(0, 100), layout.file_bytes()).ok());
}

TEST(SegmentFormat, GenerationTableFitsBeforeData) {
  for (const uint64_t data_bytes : {uint64_t{4096}, uint64_t{1} << 30, uint64_t{1} << 40}) {
    SegmentLayout layout;
    layout.data_bytes = data_bytes;
    EXPECT_GE(layout.data_offset(), kSegmentHeaderBytes + 8 * layout.granules());
    EXPECT_EQ(layout.data_offset() % kSegmentDataAlignment, 0u);
  }
}

TEST(SegmentFormat, WrongFileSizeOrVersionRefused) {
  const SegmentLayout layout = ThreeMiB();
  const std::string good = EncodeSegmentHeader(layout);
  const auto refused = [&](std::string header, uint64_t bytes, const char* why) {
    const auto read = ParseSegmentHeader(header, bytes);
    EXPECT_TRUE(absl::IsFailedPrecondition(read.status())) << read.status();
    EXPECT_TRUE(absl::StrContains(read.status().message(), why)) << read.status();
  };
  refused("", 0, "not a store's segment");
  refused(std::string(4096, 'x'), layout.file_bytes(), "not a store's segment");
  refused(good.substr(0, 40), layout.file_bytes(), "cut short");
  refused(good, layout.file_bytes() - 1, "size");
  std::string other = good;
  other[16] = 2;
  refused(other, layout.file_bytes(), "version 2");
  // Each other field: if its lowest byte changes, the header contradicts itself.
  for (const size_t at : {20, 24, 32}) {
    other = good;
    other[at] ^= 1;
    refused(other, layout.file_bytes(), "contradicts");
  }
}

}  // namespace
}  // namespace hearth
