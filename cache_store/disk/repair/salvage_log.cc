#include "cache_store/disk/repair/salvage_file.h"

#include "cache_store/disk/files/disk_tier_records.h"

namespace hearth {
namespace {

// Of a batch, behind its header, each: what it is, in most its family, key, value.
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
  if (batch.size() < kBatchHeaderBytes) return false;
  uint64_t sequence = LittleEndianNumber(batch.substr(0, 8));
  absl::string_view rest = batch.substr(kBatchHeaderBytes);
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
      visit({*key, {}, sequence++, true, true});
      continue;
    }
    const auto value = TakeLengthAndBytes(&rest);
    if (!value.has_value()) return false;
    if (kind == kBatchPut || kind == kBatchFamilyPut) {
      visit({*key, *value, sequence++, false, true});
    } else if (kind == kBatchRangeErase || kind == kBatchFamilyRangeErase) {
      ++sequence;  // of slices, whose object's record is erased in the same batch
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

SalvageDamage VisitLog(const RawFile& file, const VisitSalvaged& visit) {
  SalvageDamage damage;
  const LogScan scan = ScanLog(file.Read(0, file.size()), [&](absl::string_view record, uint64_t) {
    if (!VisitBatch(record, visit)) damage.Add("a record makes no sense");
  });
  for (uint64_t i = 0; i < scan.mended; ++i) damage.Add("a bit of it is flipped");
  for (uint64_t i = 0; i < scan.holes; ++i) damage.Add("records are damaged");
  return damage;
}

}  // namespace hearth
