#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache_store/disk/files/disk_tier_records.h"
#include "cache_store/disk/repair/salvage_file.h"
#include "proto/kv_layout.h"

namespace hearth {
namespace {

constexpr uint64_t kFooterBytes = 53;
constexpr uint64_t kTableMagic = 0x88e241b785f4cff7;
constexpr size_t kTrailerBytes = 5;   // of a block: compression, checksum
constexpr size_t kSequenceBytes = 8;  // at the end of a key: kind, sequence number
// Slices are 16 MiB at most, and one is at most a block.
constexpr uint64_t kMaxBlockBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxKeyBytes = 4096;
constexpr uint64_t kFirstGuessBytes = 64 << 10;
constexpr char kCrc32c = 1, kXxh3 = 4;
constexpr uint8_t kErasedKind = 0, kValueKind = 1;

struct BlockPlace {
  uint64_t offset = 0, bytes = 0;
};

uint32_t BlockChecksum(char kind, absl::string_view bytes) {
  if (kind == kCrc32c) return MaskedCrc32c(bytes);
  if (bytes.empty()) return 0;
  const auto sum = static_cast<uint32_t>(SliceDigest(bytes.data(), bytes.size() - 1));
  return sum ^ static_cast<uint8_t>(bytes.back()) * 0x6b9083d9U;
}

// `block`: with its trailer.
bool IsWhole(char kind, absl::string_view block) {
  if (block.size() < kTrailerBytes) return false;
  const absl::string_view sum = block.substr(block.size() - 4);
  return LittleEndianNumber(sum) == BlockChecksum(kind, block.substr(0, block.size() - 4));
}

std::string BlockIsDamaged(uint64_t offset) {
  return absl::StrCat("the block at ", offset, " is damaged");
}

struct BlockEntry {
  std::string key;
  size_t value_begin = 0, value_bytes = 0;  // in the block
};

struct BlockScan {
  std::vector<BlockEntry> entries;
  size_t bytes = 0;         // without its trailer; 0: its end was not found
  bool ends_early = false;  // more bytes may show more
};

// Of the list of places that ends a block, how many bytes it takes; 0: it is none.
size_t RestartListBytes(absl::string_view list, bool* ends_early) {
  for (size_t places = 0;; ++places) {
    if (list.size() < 4 * (places + 1)) {
      *ends_early = true;
      return 0;
    }
    const uint64_t next = LittleEndianNumber(list.substr(4 * places, 4));
    if (places > 0 && next == places) return 4 * (places + 1);
    const uint64_t before = places > 1 ? LittleEndianNumber(list.substr(4 * (places - 1), 4)) : 0;
    if (places == 0 ? next != 0 : next <= before) return 0;
  }
}

// Entry after entry, to the list of places that follows them: its first is 0, which would be an
// entry without a key. Sizes are checked against what is there, so any bytes may be looked at.
// `more`: how many the file has behind them.
BlockScan ScanBlock(absl::string_view bytes, uint64_t more = 0) {
  constexpr size_t kMaxHeadBytes = 30;
  BlockScan block;
  absl::string_view rest = bytes;
  while (true) {
    if (rest.size() >= 4 && LittleEndianNumber(rest.substr(0, 4)) == 0) {
      const size_t begin = bytes.size() - rest.size();
      const size_t list = RestartListBytes(rest, &block.ends_early);
      if (list > 0) block.bytes = begin + list;
      return block;
    }
    const auto shared = TakeVarint(&rest), fresh = TakeVarint(&rest), value = TakeVarint(&rest);
    if (!value.has_value()) {
      block.ends_early = rest.size() < kMaxHeadBytes && more > 0;
      return block;
    }
    const size_t before = block.entries.empty() ? 0 : block.entries.back().key.size();
    if (*fresh == 0 || *shared > before || *shared + *fresh > kMaxKeyBytes) return block;
    if (*fresh > rest.size() || *value > rest.size() - *fresh) {
      block.ends_early = *value <= kMaxBlockBytes && *fresh + *value <= rest.size() + more;
      return block;
    }
    BlockEntry entry;
    if (*shared > 0) entry.key = block.entries.back().key.substr(0, *shared);
    absl::StrAppend(&entry.key, rest.substr(0, *fresh));
    rest.remove_prefix(*fresh);
    entry.value_begin = bytes.size() - rest.size();
    entry.value_bytes = *value;
    rest.remove_prefix(*value);
    block.entries.push_back(std::move(entry));
  }
}

void VisitBlock(const BlockScan& block, absl::string_view bytes, bool is_sure,
                const VisitSalvaged& visit) {
  for (const BlockEntry& entry : block.entries) {
    if (entry.key.size() < kSequenceBytes) continue;
    const absl::string_view key(entry.key.data(), entry.key.size() - kSequenceBytes);
    const uint64_t packed = LittleEndianNumber(absl::string_view(entry.key).substr(key.size()));
    const auto kind = static_cast<uint8_t>(packed);
    if (kind != kErasedKind && kind != kValueKind)
      continue;  // a place in a blob file, which has the key
    visit({key, bytes.substr(entry.value_begin, entry.value_bytes), packed >> 8,
           kind == kErasedKind, is_sure});
  }
}

class TableReading {
 public:
  explicit TableReading(const RawFile& file) : file_(file) {
    if (file.size() < kFooterBytes) return;
    const std::string footer = file.Read(file.size() - kFooterBytes, kFooterBytes);
    if (footer.size() < kFooterBytes) return;
    const absl::string_view bytes(footer);
    if (LittleEndianNumber(bytes.substr(45)) != kTableMagic) return;
    const uint64_t version = LittleEndianNumber(bytes.substr(41, 4));
    if (bytes[0] != kCrc32c && bytes[0] != kXxh3) return;
    if (version < 4 || version > 5) return;  // of 4 on an index's entry is as below
    checksum_ = bytes[0];
    absl::string_view handles = bytes.substr(1, 40);
    const auto meta = TakePlace(&handles), index = TakePlace(&handles);
    if (!meta.has_value() || !index.has_value()) return;
    if (ReadIndex(*index)) ReadMeta(*meta);
  }

  const TableEnd& end() const { return end_; }
  bool has_index() const { return has_index_; }
  const std::vector<BlockPlace>& blocks() const { return blocks_; }
  char checksum() const { return checksum_; }

 private:
  std::optional<BlockPlace> TakePlace(absl::string_view* bytes) const {
    const auto offset = TakeVarint(bytes), size = TakeVarint(bytes);
    if (!size.has_value() || *offset > file_.size() || *size > kMaxBlockBytes ||
        *size + kTrailerBytes > file_.size() - *offset) {
      return std::nullopt;
    }
    return BlockPlace{*offset, *size};
  }

  // Without its trailer; empty: not whole.
  std::string ReadBlock(const BlockPlace& handle) const {
    std::string block = file_.Read(handle.offset, handle.bytes + kTrailerBytes);
    if (block.size() != handle.bytes + kTrailerBytes || !IsWhole(checksum_, block)) return "";
    block.resize(handle.bytes);
    return block;
  }

  // Entries: a key in full, and where the block is whose keys are up to it.
  bool ReadIndex(const BlockPlace& handle) {
    const std::string block = ReadBlock(handle);
    absl::string_view rest(block);
    if (rest.size() < 4) return false;
    const uint64_t places = LittleEndianNumber(rest.substr(rest.size() - 4));
    if (places > rest.size() / 4 - 1) return false;
    rest.remove_suffix(4 * (places + 1));
    while (!rest.empty()) {
      const auto shared = TakeVarint(&rest), fresh = TakeVarint(&rest);
      if (!fresh.has_value() || *shared != 0 || *fresh > rest.size()) return false;
      rest.remove_prefix(*fresh);
      const auto at = TakePlace(&rest);
      if (!at.has_value()) return false;
      blocks_.push_back(*at);
    }
    return has_index_ = blocks_.size() == places || blocks_.empty();
  }

  void ReadMeta(const BlockPlace& handle) {
    const std::string meta = ReadBlock(handle);
    for (const BlockEntry& entry : ScanBlock(meta).entries) {
      absl::string_view value(meta.data() + entry.value_begin, entry.value_bytes);
      if (entry.key == "rocksdb.range_del") has_range_erase_ = true;
      if (entry.key != "rocksdb.properties") continue;
      const auto at = TakePlace(&value);
      if (!at.has_value()) return;
      const std::string properties = ReadBlock(*at);
      for (const BlockEntry& one : ScanBlock(properties).entries) {
        if (one.key == "rocksdb.column.family.name") {
          end_.family = properties.substr(one.value_begin, one.value_bytes);
        }
        end_.is_ingested |= one.key == "rocksdb.external_sst_file.version";
      }
      end_.is_readable = !properties.empty();
    }
    end_.is_ingested = end_.is_ingested && !has_range_erase_;
  }

  const RawFile& file_;
  char checksum_ = kXxh3;
  bool has_index_ = false, has_range_erase_ = false;
  std::vector<BlockPlace> blocks_;
  TableEnd end_;
};

// Without an index. Behind the blocks of entries lie others, which are none of these.
void VisitInARow(const RawFile& file, const VisitSalvaged& visit, SalvageDamage* damage) {
  uint64_t offset = 0;
  // Behind a length that rotted the next block may be one that a tenant made, inside a value.
  bool is_in_step = true;
  while (offset < file.size()) {
    uint64_t guess = kFirstGuessBytes;
    std::string bytes;
    BlockScan block;
    while (true) {
      bytes = file.Read(offset, guess);
      block = ScanBlock(bytes, file.size() - offset - bytes.size());
      const bool lacks_trailer = block.bytes > 0 && block.bytes + kTrailerBytes > bytes.size();
      if (!block.ends_early && !lacks_trailer) break;
      if (bytes.size() < guess || guess >= kMaxBlockBytes) break;
      guess *= 4;
    }
    const bool has_end = block.bytes > 0 && block.bytes + kTrailerBytes <= bytes.size();
    const absl::string_view all =
        absl::string_view(bytes).substr(0, has_end ? block.bytes + kTrailerBytes : 0);
    const bool is_sure = is_in_step && has_end && (IsWhole(kXxh3, all) || IsWhole(kCrc32c, all));
    is_in_step = is_sure;
    VisitBlock(block, bytes, is_sure, visit);
    if (!is_sure) damage->Add(BlockIsDamaged(offset));
    if (!has_end) return;
    offset += all.size();
  }
}

}  // namespace

TableEnd ReadTableEnd(const RawFile& file) { return TableReading(file).end(); }

SalvageDamage VisitTable(const RawFile& file, const VisitSalvaged& visit) {
  SalvageDamage damage;
  const TableReading table(file);
  if (!table.has_index()) {
    damage.Add("its end or its index is gone or damaged");
    VisitInARow(file, visit, &damage);
    return damage;
  }
  if (!table.end().is_readable) damage.Add("its properties are damaged");
  for (const BlockPlace& handle : table.blocks()) {
    const std::string bytes = file.Read(handle.offset, handle.bytes + kTrailerBytes);
    const bool is_sure =
        bytes.size() == handle.bytes + kTrailerBytes && IsWhole(table.checksum(), bytes);
    if (!is_sure) damage.Add(BlockIsDamaged(handle.offset));
    const absl::string_view inside = absl::string_view(bytes).substr(0, handle.bytes);
    VisitBlock(ScanBlock(inside), inside, is_sure, visit);
  }
  return damage;
}

}  // namespace hearth
