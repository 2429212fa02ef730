#include "cache_store/disk/files/disk_tier_records.h"

#include <rocksdb/file_checksum.h>

#include <algorithm>
#include <array>
#include <cassert>

#include "proto/byte_codec.h"

namespace hearth {
namespace {

// The one that RocksDB offers: what it sums up files with.
uint32_t Crc32c(absl::string_view bytes) {
  static const auto* const factory = new std::shared_ptr<rocksdb::FileChecksumGenFactory>(
      rocksdb::GetFileChecksumGenCrc32cFactory());
  const auto generator = (*factory)->CreateFileChecksumGenerator({});
  generator->Update(bytes.data(), bytes.size());
  generator->Finalize();
  const std::string sum = generator->GetChecksum();  // big endian
  return LittleEndianNumber(std::string(sum.rbegin(), sum.rend()));
}

uint32_t Mask(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xA282EAD8; }
uint32_t Unmask(uint32_t masked) {
  const uint32_t rotated = masked - 0xA282EAD8;
  return rotated >> 17 | rotated << 15;
}

// The change of a sum by each last byte.
std::array<uint32_t, 256> MakeCrcTable() {
  constexpr uint32_t kCastagnoli = 0x82F63B78;
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kCastagnoli : 0);
    table[i] = crc;
  }
  return table;
}

// Flips the one bit that changes the sum of `bytes` by `difference`. False: no single one does.
bool FlipBack(uint32_t difference, std::string* bytes) {
  static const std::array<uint32_t, 256> table = MakeCrcTable();
  std::array<uint32_t, 8> changes{};
  for (int bit = 0; bit < 8; ++bit) changes[bit] = table[size_t{1} << bit];
  for (size_t i = bytes->size(); i > 0; --i) {
    for (int bit = 0; bit < 8; ++bit) {
      if (changes[bit] == difference) {
        (*bytes)[i - 1] = static_cast<char>((*bytes)[i - 1] ^ 1 << bit);
        return true;
      }
      changes[bit] = changes[bit] >> 8 ^ table[changes[bit] & 0xFF];
    }
  }
  return false;
}

bool IsOneBit(uint32_t bits) { return bits != 0 && (bits & (bits - 1)) == 0; }

// Where the header of a piece lies that is to begin at `at`.
size_t HeaderAt(size_t at) {
  const size_t left = kLogBlockBytes - at % kLogBlockBytes;
  return left < kLogHeaderBytes ? at + left : at;
}

// Type and bytes of a piece of this length, if they lie within the block and the log.
std::optional<absl::string_view> Checked(absl::string_view log, size_t header, size_t bytes) {
  const size_t left_in_block = kLogBlockBytes - header % kLogBlockBytes;
  if (kLogHeaderBytes + bytes > left_in_block || header + kLogHeaderBytes + bytes > log.size()) {
    return std::nullopt;
  }
  return log.substr(header + kLogHeaderBytes - 1, 1 + bytes);
}

bool HasHeader(absl::string_view log, size_t header) {
  return header <= log.size() && log.size() - header >= kLogHeaderBytes;
}

}  // namespace

uint64_t LittleEndianNumber(absl::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i > 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[i - 1]);
  return value;
}

uint32_t MaskedCrc32c(absl::string_view bytes) { return Mask(Crc32c(bytes)); }

LogHeader ParseLogHeader(absl::string_view bytes) {
  assert(bytes.size() == kLogHeaderBytes);
  return {static_cast<uint32_t>(LittleEndianNumber(bytes.substr(0, 4))),
          LittleEndianNumber(bytes.substr(4, 2)), static_cast<uint8_t>(bytes[6])};
}

std::optional<LogPiece> LogPieceAt(absl::string_view log, size_t at) {
  const size_t header_at = HeaderAt(at);
  if (!HasHeader(log, header_at)) return std::nullopt;
  const LogHeader header = ParseLogHeader(log.substr(header_at, kLogHeaderBytes));
  if (!header.IsKnown()) return std::nullopt;
  const auto checked = Checked(log, header_at, header.bytes);
  if (!checked.has_value() || MaskedCrc32c(*checked) != header.check) return std::nullopt;
  return LogPiece{header.type, std::string(checked->substr(1)),
                  header_at + kLogHeaderBytes + header.bytes};
}

std::optional<LogPiece> MendedLogPieceAt(absl::string_view log, size_t at) {
  const size_t header_at = HeaderAt(at);
  if (!HasHeader(log, header_at)) return std::nullopt;
  const LogHeader header = ParseLogHeader(log.substr(header_at, kLogHeaderBytes));
  const auto piece_of = [&](absl::string_view type_and_bytes) -> std::optional<LogPiece> {
    const auto type = static_cast<uint8_t>(type_and_bytes[0]);
    if (type < kWholeRecord || type > kLastPiece) return std::nullopt;
    return LogPiece{type, std::string(type_and_bytes.substr(1)),
                    header_at + kLogHeaderBytes + type_and_bytes.size() - 1};
  };
  if (const auto checked = Checked(log, header_at, header.bytes); checked.has_value()) {
    const uint32_t crc = Crc32c(*checked);
    if (IsOneBit(Mask(crc) ^ header.check)) return piece_of(*checked);
    std::string bytes(*checked);
    if (FlipBack(crc ^ Unmask(header.check), &bytes)) return piece_of(bytes);
  }
  for (int bit = 0; bit < 16; ++bit) {
    const auto checked = Checked(log, header_at, header.bytes ^ size_t{1} << bit);
    if (checked.has_value() && MaskedCrc32c(*checked) == header.check) return piece_of(*checked);
  }
  return std::nullopt;
}

uint64_t WholeBytes(absl::string_view log) {
  size_t at = 0;
  while (const std::optional<LogPiece> piece = LogPieceAt(log, at)) at = piece->end;
  return at;
}

bool EndsInPart(absl::string_view log, uint64_t whole) {
  if (whole >= log.size()) return false;
  const size_t header_at = HeaderAt(whole);
  if (!HasHeader(log, header_at)) return true;
  const LogHeader header = ParseLogHeader(log.substr(header_at, kLogHeaderBytes));
  return header_at + kLogHeaderBytes + header.bytes > log.size();
}

namespace {

// One pass over a log.
class LogScanner {
 public:
  LogScanner(absl::string_view log, const VisitRecord& visit) : log_(log), visit_(visit) {}

  LogScan Run() {
    for (size_t at = 0; HeaderAt(at) < log_.size();) {
      if (scan_.mended == 0 && scan_.holes == 0 && !record_.has_value()) scan_.whole_bytes = at;
      std::optional<LogPiece> piece = LogPieceAt(log_, at);
      if (!piece.has_value() && (piece = MendedLogPieceAt(log_, at))) ++scan_.mended;
      if (piece.has_value()) {
        Take(*piece);
        at = piece->end;
        continue;
      }
      const std::optional<size_t> next = NextAfter(at);
      record_.reset();
      if (!next.has_value()) {
        scan_.has_tail = true;
        break;
      }
      ++scan_.holes;
      at = *next;
    }
    // A crash may come between two pieces.
    if (record_.has_value()) scan_.has_tail = true;
    if (scan_.mended == 0 && scan_.holes == 0 && !scan_.has_tail) scan_.whole_bytes = log_.size();
    return scan_;
  }

 private:
  void Take(const LogPiece& piece) {
    if (piece.type == kWholeRecord || piece.type == kFirstPiece) record_ = "";
    if (!record_.has_value()) return;  // its beginning is lost
    *record_ += piece.body;
    if (piece.type != kWholeRecord && piece.type != kLastPiece) return;
    ++scan_.records;
    if (record_->size() >= kBatchHeaderBytes) {
      const uint64_t sequence = LoadU64(absl::string_view(*record_).substr(0, 8));
      if (scan_.first_sequence == 0) scan_.first_sequence = sequence;
      scan_.next_sequence = sequence + LittleEndianNumber(absl::string_view(*record_).substr(8, 4));
    }
    if (visit_) visit_(*record_, scan_.holes);
    record_.reset();
  }

  std::optional<size_t> NextAfter(size_t at) const {
    const size_t header = HeaderAt(at);
    if (HasHeader(log_, header)) {
      const LogHeader damaged = ParseLogHeader(log_.substr(header, kLogHeaderBytes));
      const size_t end = header + kLogHeaderBytes + damaged.bytes;
      if (Checked(log_, header, damaged.bytes).has_value() && LogPieceAt(log_, end)) return end;
    }
    for (size_t block = (header / kLogBlockBytes + 1) * kLogBlockBytes; block < log_.size();
         block += kLogBlockBytes) {
      if (LogPieceAt(log_, block)) return block;
    }
    return std::nullopt;
  }

  const absl::string_view log_;
  const VisitRecord& visit_;
  LogScan scan_;
  std::optional<std::string> record_;  // none: not in one
};

}  // namespace

LogScan ScanLog(absl::string_view log, const VisitRecord& visit) {
  return LogScanner(log, visit).Run();
}

std::optional<uint64_t> TakeVarint(absl::string_view* bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes->size() && i < 10; ++i) {
    const auto byte = static_cast<uint8_t>((*bytes)[i]);
    value |= uint64_t{byte & 0x7Fu} << (7 * i);
    if (byte < 0x80) {
      bytes->remove_prefix(i + 1);
      return value;
    }
  }
  return std::nullopt;
}

std::optional<absl::string_view> TakeLengthAndBytes(absl::string_view* bytes) {
  const std::optional<uint64_t> length = TakeVarint(bytes);
  if (!length.has_value() || *length > bytes->size()) return std::nullopt;
  const absl::string_view taken = bytes->substr(0, *length);
  bytes->remove_prefix(*length);
  return taken;
}

bool VisitBatch(absl::string_view batch, const std::function<void(const BatchEntry&)>& visit) {
  // Of a batch, behind its header, each: what it is, in most its family, key, value.
  enum Kind : uint8_t {
    kErase = 0x0,
    kPut = 0x1,
    kNote = 0x3,
    kFamilyErase = 0x4,
    kFamilyPut = 0x5,
    kNothing = 0xD,
    kFamilyRangeErase = 0xE,
    kRangeErase = 0xF,
  };
  if (batch.size() < kBatchHeaderBytes) return false;
  BatchEntry entry;
  entry.sequence = LittleEndianNumber(batch.substr(0, 8));
  absl::string_view rest = batch.substr(kBatchHeaderBytes);
  while (!rest.empty()) {
    const auto kind = static_cast<uint8_t>(rest[0]);
    rest.remove_prefix(1);
    if (kind == kNothing) continue;
    const bool has_family = kind == kFamilyErase || kind == kFamilyPut || kind == kFamilyRangeErase;
    const std::optional<uint64_t> family = has_family ? TakeVarint(&rest) : 0;
    const auto key = TakeLengthAndBytes(&rest);
    if (!family.has_value() || !key.has_value()) return false;
    if (kind == kNote) continue;
    entry.family = static_cast<uint32_t>(*family);
    entry.key = *key;
    entry.value = {};
    entry.is_erase = kind == kErase || kind == kFamilyErase;
    if (!entry.is_erase) {
      const auto value = TakeLengthAndBytes(&rest);
      const bool is_range = kind == kRangeErase || kind == kFamilyRangeErase;
      if (!value.has_value() || !(is_range || kind == kPut || kind == kFamilyPut)) return false;
      entry.value = *value;
      if (is_range) ++entry.sequence;  // of slices, whose object's record is erased in this batch
      if (is_range) continue;
    }
    visit(entry);
    ++entry.sequence;
  }
  return true;
}

void AppendLogRecord(absl::string_view record, std::string* log) {
  bool is_first = true;
  do {
    const size_t left = kLogBlockBytes - log->size() % kLogBlockBytes;
    if (left < kLogHeaderBytes) {
      log->append(left, '\0');
      continue;
    }
    const absl::string_view body = record.substr(0, left - kLogHeaderBytes);
    record.remove_prefix(body.size());
    const uint8_t type = is_first ? (record.empty() ? kWholeRecord : kFirstPiece)
                                  : (record.empty() ? kLastPiece : kMiddlePiece);
    std::string checked(1, static_cast<char>(type));
    checked.append(body.data(), body.size());
    AppendU32(log, MaskedCrc32c(checked));
    log->push_back(static_cast<char>(body.size() & 0xFF));
    log->push_back(static_cast<char>(body.size() >> 8));
    *log += checked;
    is_first = false;
  } while (is_first || !record.empty());
}

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
  const LogHeader header = ParseLogHeader(header_);
  body_left_ = header.bytes;
  ends_record_ = header.EndsRecord();
  header_.clear();
}

}  // namespace hearth
