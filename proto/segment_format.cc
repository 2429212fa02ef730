#include "proto/segment_format.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "proto/byte_codec.h"

namespace hearth {
namespace {

constexpr absl::string_view kMagic = "hearthsegment\r\n\x1a";
constexpr uint32_t kHostVersion = 1, kDeviceVersion = 3;  // 2: a CUDA IPC handle in the header
constexpr uint64_t kMaxDataBytes = uint64_t{1} << 50;
constexpr char kCutShort[] = "the header of the segment is cut short";

}  // namespace

uint64_t SegmentLayout::data_offset() const {
  const uint64_t used = kSegmentHeaderBytes + granules() * sizeof(uint64_t);
  return (used + kSegmentDataAlignment - 1) / kSegmentDataAlignment * kSegmentDataAlignment;
}

std::string EncodeSegmentHeader(const SegmentLayout& layout) {
  assert(layout.data_bytes > 0 && layout.data_bytes % kSegmentGranuleBytes == 0);
  std::string out(kMagic);
  AppendU32(&out, layout.device.has_value() ? kDeviceVersion : kHostVersion);
  AppendU32(&out, static_cast<uint32_t>(kSegmentGranuleBytes));
  AppendU64(&out, layout.data_bytes);
  AppendU64(&out, layout.data_offset());
  out.append(layout.id.begin(), layout.id.end());
  if (layout.device.has_value()) {
    out.append(layout.device->device.begin(), layout.device->device.end());
    AppendU64(&out, layout.device->bytes);
  }
  assert(out.size() <= kSegmentHeaderBytes);
  out.resize(kSegmentHeaderBytes, '\0');
  return out;
}

absl::StatusOr<SegmentLayout> ParseSegmentHeader(absl::string_view header, uint64_t file_bytes) {
  const auto refuse = [](absl::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat("shared memory: ", why));
  };
  ByteReader reader(header);
  if (reader.Bytes(kMagic.size(), "magic") != kMagic) {
    return refuse("this is not a store's segment");
  }
  const uint32_t version = reader.U32("version"), granule = reader.U32("granule");
  const uint64_t data_bytes = reader.U64("data bytes"), data_offset = reader.U64("data offset");
  const absl::string_view id = reader.Bytes(sizeof(SegmentId), "id");
  if (!reader.status().ok() || header.size() < kSegmentHeaderBytes) return refuse(kCutShort);
  if (version != kHostVersion && version != kDeviceVersion) {
    return refuse(absl::StrCat("version ", version, "; this program reads ", kHostVersion, " and ",
                               kDeviceVersion));
  }
  SegmentLayout layout;
  if (version == kDeviceVersion) {
    DeviceMemoryHandle& handle = layout.device.emplace();
    const absl::string_view device = reader.Bytes(handle.device.size(), "device");
    std::copy(device.begin(), device.end(), handle.device.begin());
    handle.bytes = reader.U64("bytes on the device");
  }
  layout.data_bytes = data_bytes;
  std::copy(id.begin(), id.end(), layout.id.begin());
  if (granule != kSegmentGranuleBytes || data_bytes == 0 || data_bytes > kMaxDataBytes ||
      data_bytes % kSegmentGranuleBytes != 0 || data_offset != layout.data_offset() ||
      file_bytes != layout.file_bytes() ||
      (layout.device.has_value() && layout.device->bytes < data_bytes)) {
    return refuse("the header of the segment contradicts itself or the file's size");
  }
  return layout;
}

}  // namespace hearth
