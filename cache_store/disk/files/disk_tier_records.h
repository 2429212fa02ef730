// Reads and writes the format of RocksDB's logs and manifests. Private to disk/.
//
// Blocks hold pieces one after the other, none across a block's end; a rest too short for a header
// is zeros. A piece: masked CRC32c of type and bytes, their number (16 bits), type; little endian.
// A record is one piece, or a first, some middle ones and a last. Pure functions, plain values; a
// RecordEnds is used by one caller at a time.
#ifndef HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_RECORDS_H_
#define HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace hearth {

// Up to eight bytes.
uint64_t LittleEndianNumber(absl::string_view bytes);
// CRC32c, changed as RocksDB stores it.
uint32_t MaskedCrc32c(absl::string_view bytes);

inline constexpr size_t kLogBlockBytes = 32768;
inline constexpr size_t kLogHeaderBytes = 7;
// A log's record is a batch; its header has the sequence number of the first entry (64 bits) and
// the number of entries.
inline constexpr size_t kBatchHeaderBytes = 12;

enum LogPieceType : uint8_t { kWholeRecord = 1, kFirstPiece = 2, kMiddlePiece = 3, kLastPiece = 4 };

struct LogHeader {
  uint32_t check = 0;
  size_t bytes = 0;
  uint8_t type = 0;

  bool IsKnown() const { return type >= kWholeRecord && type <= kLastPiece; }
  bool EndsRecord() const { return type == kWholeRecord || type == kLastPiece; }
};
// REQUIRES: kLogHeaderBytes bytes.
LogHeader ParseLogHeader(absl::string_view bytes);

struct LogPiece {
  uint8_t type = 0;
  std::string body;
  size_t end = 0;
};
// The piece that begins at `at`, or after the block's filling there. None when it is not whole.
std::optional<LogPiece> LogPieceAt(absl::string_view log, size_t at);
// The same for a piece with one flipped bit, corrected: a check of 32 bits tells which bit it was.
std::optional<LogPiece> MendedLogPieceAt(absl::string_view log, size_t at);

// How many bytes from the beginning are whole pieces.
uint64_t WholeBytes(absl::string_view log);
// Whether the bytes after `whole` are only the beginning of a piece, as a failed write leaves it;
// RocksDB reads that as the end.
bool EndsInPart(absl::string_view log, uint64_t whole);

struct LogScan {
  uint64_t records = 0;   // that can be read
  uint64_t mended = 0;    // pieces of which one bit was flipped
  uint64_t holes = 0;     // places where records are lost, and whole ones follow
  bool has_tail = false;  // its end is not whole: torn by a crash, or damaged
  uint64_t first_sequence = 0, next_sequence = 0;  // RocksDB's, of a log; 0: it has no record
  uint64_t whole_bytes = 0;  // from the beginning: records, none of them damaged or mended
};
// Visits every record that is not damaged. After damage it goes on where a piece is certain to
// begin: where the damaged one says it ends, or with the next block. It never searches for a piece
// within other bytes, which could be made to look like one. `visit` may be null; `holes`: before
// the record.
using VisitRecord = std::function<void(absl::string_view record, uint64_t holes)>;
LogScan ScanLog(absl::string_view log, const VisitRecord& visit);

// Parsed from the beginning of `*bytes`, and removed from it. None when there is none.
std::optional<uint64_t> TakeVarint(absl::string_view* bytes);
std::optional<absl::string_view> TakeLengthAndBytes(absl::string_view* bytes);

// A put or an erase of one key, as a log's record has it.
struct BatchEntry {
  uint32_t family = 0;           // its id
  absl::string_view key, value;  // valid during the visit only
  uint64_t sequence = 0;
  bool is_erase = false;
};
// False when the batch cannot be parsed to its end.
bool VisitBatch(absl::string_view batch, const std::function<void(const BatchEntry&)>& visit);

// Appends a record to a log.
void AppendLogRecord(absl::string_view record, std::string* log);

// Finds where the last whole record of a log ends, from its bytes as they are written.
class RecordEnds {
 public:
  void Feed(absl::string_view data);
  uint64_t end() const { return end_; }

 private:
  void BeginBody();

  uint64_t at_ = 0, end_ = 0, body_left_ = 0;
  bool ends_record_ = false;
  std::string header_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_RECORDS_H_
