#include "cache_store/disk/files/disk_tier_records.h"

#include <algorithm>

namespace hearth {
namespace {

constexpr size_t kLogBlockBytes = 32768;
constexpr size_t kLogHeaderBytes = 7;  // a sum of 4 bytes, the body's length (2), type
constexpr uint8_t kWholeRecord = 1, kLastPiece = 4;

}  // namespace

void RecordEnds::Feed(absl::string_view data) {
  for (size_t i = 0; i < data.size();) {
    const uint64_t left_in_block = kLogBlockBytes - at_ % kLogBlockBytes;
    uint64_t bytes = 1;
    if (body_left_ > 0) {
      bytes = std::min<uint64_t>(body_left_, data.size() - i);
      body_left_ -= bytes;
    } else if (header_.empty() && left_in_block < kLogHeaderBytes) {
      bytes = std::min<uint64_t>(left_in_block, data.size() - i);  // filled with zeros
    } else {
      header_ += data[i];
      if (header_.size() == kLogHeaderBytes) BeginBody();
    }
    i += bytes;
    at_ += bytes;
    if (body_left_ == 0 && ends_record_ && header_.empty()) {
      end_ = at_;
      ends_record_ = false;
    }
  }
}

void RecordEnds::BeginBody() {
  const auto byte = [this](size_t at) { return static_cast<uint8_t>(header_[at]); };
  body_left_ = byte(4) | byte(5) << 8;
  ends_record_ = byte(6) == kWholeRecord || byte(6) == kLastPiece;
  header_.clear();
}

}  // namespace hearth
