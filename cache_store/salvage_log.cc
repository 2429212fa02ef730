#include "cache_store/salvage_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// The format is in disk_tier_manifest.cc. Blocks begin at places that damage does not move: behind
// a record whose length cannot be believed reading goes on with the next block.
constexpr size_t kLogBlockBytes = 32768;
constexpr size_t kLogHeaderBytes = 7;
enum LogRecord : uint8_t { kNoRecord = 0, kWholeRecord, kFirstPart, kMiddlePart, kLastPart };

// A batch: sequence number of its first entry (64 bits), how many there are (32), then each: what
// it is, in most its family, key, value.
constexpr size_t kBatchHeadBytes = 12;
enum BatchEntry : uint8_t {
  kBatchErase = 0x0,
  kBatchPut = 0x1,
  kBatchNote = 0x3,
  kBatchFamilyErase = 0x4,
  kBatchFamilyPut = 0x5,
  kBatchNothing = 0xD,
  kBatchFamilyRangeErase = 0xE,
  kBatchRangeErase = 0xF,
};

// False: the batch makes no sense from there on.
bool VisitBatch(absl::string_view batch, const VisitSalvaged& visit) {
  if (batch.size() < kBatchHeadBytes) return false;
  uint64_t sequence = LittleEndianNumber(batch.substr(0, 8));
  absl::string_view rest = batch.substr(kBatchHeadBytes);
  while (!rest.empty()) {
    const auto kind = static_cast<uint8_t>(rest[0]);
    rest.remove_prefix(1);
    if (kind == kBatchNothing) continue;
    const bool has_family =
        kind == kBatchFamilyErase || kind == kBatchFamilyPut || kind == kBatchFamilyRangeErase;
    if (has_family && !TakeVarint(&rest).has_value()) return false;
    const auto key = TakeLengthAndBytes(&rest);
    if (!key.has_value()) return false;
    if (kind == kBatchNote) continue;
    if (kind == kBatchErase || kind == kBatchFamilyErase) {
      visit({*key, {}, sequence++, true, true, 0});
      continue;
    }
    const auto value = TakeLengthAndBytes(&rest);
    if (!value.has_value()) return false;
    if (kind == kBatchPut || kind == kBatchFamilyPut) {
      visit({*key, *value, sequence++, false, true, 0});
    } else if (kind == kBatchRangeErase || kind == kBatchFamilyRangeErase) {
      ++sequence;  // of slices, whose object's record is erased in the same batch
    } else {
      return false;
    }
  }
  return true;
}

class LogReading {
 public:
  LogReading(const RawFile& file, const VisitSalvaged& visit) : file_(file), visit_(visit) {}

  SalvageDamage Run() {
    for (uint64_t begin = 0; begin < file_.size(); begin += kLogBlockBytes) {
      const std::string block = file_.Read(begin, kLogBlockBytes);
      if (block.size() < std::min<uint64_t>(kLogBlockBytes, file_.size() - begin)) {
        Broken(begin + block.size(), "cannot be read");
      }
      ReadBlock(begin, block);
    }
    return std::move(damage_);
  }

 private:
  void ReadBlock(uint64_t begin, absl::string_view block) {
    uint64_t at = begin;
    for (size_t taken = 0; block.size() >= kLogHeaderBytes; block.remove_prefix(taken)) {
      const size_t bytes = LittleEndianNumber(block.substr(4, 2));
      const auto kind = static_cast<uint8_t>(block[6]);
      if (kind == kNoRecord && bytes == 0) {  // room that was never written, or pages that are lost
        if (!has_hole_) hole_at_ = at;
        has_hole_ = true;
        return;
      }
      if (kLogHeaderBytes + bytes > block.size()) {
        // Of the last block its end may never have been written.
        const bool is_torn = begin + kLogBlockBytes >= file_.size();
        return is_torn ? Abandon() : Broken(at, "is damaged");
      }
      if (kind > kLastPart ||
          MaskedCrc32c(block.substr(6, 1 + bytes)) != LittleEndianNumber(block.substr(0, 4))) {
        return Broken(at, "is damaged");
      }
      Take(kind, at, block.substr(kLogHeaderBytes, bytes));
      taken = kLogHeaderBytes + bytes;
      at += taken;
    }
  }

  void Take(uint8_t kind, uint64_t at, absl::string_view bytes) {
    if (std::exchange(has_hole_, false)) Broken(hole_at_, "is lost");
    if (kind == kWholeRecord || kind == kFirstPart) {
      parts_.clear();
      has_begun_ = true;
    }
    if (!has_begun_) return;
    absl::StrAppend(&parts_, bytes);
    if (kind != kWholeRecord && kind != kLastPart) return;
    if (!VisitBatch(parts_, visit_)) Broken(at, "makes no sense");
    Abandon();
  }

  void Abandon() {
    parts_.clear();
    has_begun_ = false;
  }

  void Broken(uint64_t at, absl::string_view what) {
    damage_.Add(absl::StrCat("the record at ", at, " ", what));
    Abandon();
  }

  const RawFile& file_;
  const VisitSalvaged& visit_;
  std::string parts_;  // of a record, those before
  bool has_begun_ = false;
  bool has_hole_ = false;
  uint64_t hole_at_ = 0;
  SalvageDamage damage_;
};

}  // namespace

SalvageDamage VisitLog(const RawFile& file, const VisitSalvaged& visit) {
  return LogReading(file, visit).Run();
}

}  // namespace hearth
