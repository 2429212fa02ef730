// Reading the files of a damaged database, past what rotted. Not by RocksDB: it opens no table
// whose end is gone, gives up a log at the first record that does not match its checksum, and
// asserts that what it reads makes sense.
//
// What is read proves itself: records and slices by their digests, restore points by the objects
// that they name. Nothing is ever written. A place that cannot be read is damage like any other.
// Thread safety: a RawFile is used by one thread; the functions are pure.
#ifndef HEARTH_CACHE_STORE_DISK_REPAIR_SALVAGE_FILE_H_
#define HEARTH_CACHE_STORE_DISK_REPAIR_SALVAGE_FILE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"

namespace hearth {

class RawFile {
 public:
  explicit RawFile(const std::string& path);
  ~RawFile();
  RawFile(const RawFile&) = delete;
  RawFile& operator=(const RawFile&) = delete;

  uint64_t size() const { return size_; }
  // Fewer bytes where the file ends, or where it cannot be read.
  std::string Read(uint64_t offset, uint64_t bytes) const;

 private:
  const int fd_;
  uint64_t size_ = 0;
};

// One version of one key, as a file of a damaged database has it.
struct SalvagedEntry {
  absl::string_view key, value;  // valid during the visit only
  uint64_t sequence = 0;         // the higher, the newer
  bool is_erase = false;
  // The checksum around it was right. Else only what proves itself is to be believed, and neither
  // its key nor its age.
  bool is_sure = false;
};
using VisitSalvaged = std::function<void(const SalvagedEntry&)>;

// The damage of a file; empty: none.
struct SalvageDamage {
  uint64_t places = 0;
  std::string first;  // the first of them, for people

  void Add(std::string what) {
    if (places++ == 0) first = std::move(what);
  }
};

// The readers: each visits every entry that can still be read, in the file's order.

// Of a table the end that says what it is.
struct TableEnd {
  bool is_readable = false;  // footer, index and properties; else nothing below is known
  std::string family;
  bool is_ingested = false;  // written beside the log, so that a database can take it over as it is
};
TableEnd ReadTableEnd(const RawFile& file);

// RocksDB's block-based format, as this program writes it: not compressed, one index. Where the
// index can be read it says where the blocks are; else each is followed by the next.
SalvageDamage VisitTable(const RawFile& file, const VisitSalvaged& visit);
// The batches that are whole, before and behind what is not. That the last one was not finished is
// no damage: a process that dies leaves that.
SalvageDamage VisitLog(const RawFile& file, const VisitSalvaged& visit);
// Each value lies beside its key. None is sure, and values that rotted are no damage here; behind a
// damaged head the next one is searched for.
SalvageDamage VisitBlobs(const RawFile& file, const VisitSalvaged& visit);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_REPAIR_SALVAGE_FILE_H_
