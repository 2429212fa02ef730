// Checks blocks that RocksDB would parse without verifying them. Private to disk/.
//
// RocksDB asserts that a block is valid, unless it has verified the block's checksum, which in
// Debian's build takes as long as the rest of a read. In a table of large slices, each slice is a
// block of its own, and all bytes around the slice are known: its length, one restart point at 0,
// no compression, a full key, sequence number 0. If these bytes are as expected, no assertion can
// fail: a damaged key is not found, and each reader verifies the digest of a slice. All other
// blocks are read again with their checksum. RocksDB always parses a table's properties before
// verifying them, so they are checked here, too.
#ifndef HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_BLOCKS_H_
#define HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_BLOCKS_H_

#include <rocksdb/file_system.h>

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hearth {

// While an object of this class exists, its thread may only read blocks of large slices; other
// reads are refused.
class OnlySliceBlocks {
 public:
  OnlySliceBlocks() {
    assert(!wanted());  // objects do not nest: the inner one would end the outer one's check
    wanted() = true;
  }
  ~OnlySliceBlocks() { wanted() = false; }
  OnlySliceBlocks(const OnlySliceBlocks&) = delete;
  OnlySliceBlocks& operator=(const OnlySliceBlocks&) = delete;

  static bool& wanted() {
    // If all thread-local data is aligned to less than 8 bytes, mold 1.10 can place it before the
    // first page of the data segment. The program then cannot start.
    alignas(8) thread_local bool wanted = false;
    return wanted;
  }
};

// Returns whether `read` (a block with its trailer) is a valid block of one large slice.
inline bool IsSliceBlock(const rocksdb::Slice& read) {
  constexpr size_t kKeyBytes = 12, kFooterBytes = 8, kRestartBytes = 8, kTrailerBytes = 5;
  constexpr size_t kAround = kKeyBytes + kFooterBytes + kRestartBytes + kTrailerBytes;
  constexpr size_t kMaxHeaderBytes = 7;
  if (read.size() < kAround + kMaxHeaderBytes) return false;
  const auto* const bytes = reinterpret_cast<const uint8_t*>(read.data());
  if (bytes[0] != 0 || bytes[1] != kKeyBytes + kFooterBytes)
    return false;  // wrong lengths of shared and unshared key bytes
  uint64_t value_bytes = 0;
  size_t at = 2;
  for (int shift = 0; shift < 35; shift += 7) {
    const uint8_t byte = bytes[at++];
    value_bytes |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) break;
    if (shift == 28) return false;
  }
  if (value_bytes + at + kAround != read.size()) return false;
  constexpr uint8_t kPlainValue[kFooterBytes] = {1};  // type "value", sequence number 0
  constexpr uint8_t kOneRestart[kRestartBytes] = {0, 0, 0, 0, 1};
  const uint8_t* const trailer = bytes + read.size() - kTrailerBytes;
  return std::memcmp(bytes + at + kKeyBytes, kPlainValue, kFooterBytes) == 0 &&
         std::memcmp(trailer - kRestartBytes, kOneRestart, kRestartBytes) == 0 && trailer[0] == 0;
}

// Returns whether `read` is the properties block of a table with a damaged index type, on which
// RocksDB would assert.
inline bool IsWrongProperties(const rocksdb::Slice& read) {
  constexpr char kFirstName[] = "rocksdb.";  // the first key, after three length bytes
  constexpr size_t kNameBytes = sizeof(kFirstName) - 1, kNameAt = 3, kTrailerBytes = 5;
  if (read.size() < kNameAt + kNameBytes + kTrailerBytes) return false;
  return std::memcmp(read.data() + kNameAt, kFirstName, kNameBytes) == 0 &&
         (read[read.size() - kTrailerBytes - 1] & 0x80) != 0;
}

class TableReader : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  using rocksdb::FSRandomAccessFileOwnerWrapper::FSRandomAccessFileOwnerWrapper;

  rocksdb::IOStatus Read(uint64_t offset, size_t bytes, const rocksdb::IOOptions& options,
                         rocksdb::Slice* result, char* scratch,
                         rocksdb::IODebugContext* dbg) const override {
    rocksdb::IOStatus status =
        FSRandomAccessFileOwnerWrapper::Read(offset, bytes, options, result, scratch, dbg);
    if (!status.ok()) return status;
    if (OnlySliceBlocks::wanted() && !IsSliceBlock(*result)) {
      return rocksdb::IOStatus::Corruption("the block is not a block of slices");
    }
    if (IsWrongProperties(*result))
      return rocksdb::IOStatus::Corruption("the properties of the table are damaged");
    return status;
  }
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_BLOCKS_H_
