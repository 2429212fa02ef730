// Reads the files of a damaged database, past the rotten parts. Without RocksDB, which opens no
// table whose end is gone, gives up a log at the first record that does not match its checksum, and
// asserts that the data makes sense.
//
// Digests prove records and slices, and a restore point is proved by the objects that it names.
// Nothing is ever written. A place that cannot be read is damage like any other.
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

// One version of one key in a file of a damaged database.
struct SalvagedEntry {
  absl::string_view key, value;  // valid during the visit only
  uint64_t sequence = 0;         // the higher, the newer
  bool is_erase = false;
  // The checksum around it was right. Else neither its key nor its age can be trusted, only a value
  // with a digest.
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

// The end of a table, which describes it.
struct TableEnd {
  bool is_readable = false;  // footer, index and properties; else nothing below is known
  std::string family;
  bool is_ingested = false;  // written beside the log, so that a database can link it as it is
};
TableEnd ReadTableEnd(const RawFile& file);

// RocksDB's block-based format, as this program writes it: not compressed, one index. Where the
// index can be read it says where the blocks are; else each is followed by the next.
SalvageDamage VisitTable(const RawFile& file, const VisitSalvaged& visit);
// Visits the whole batches, also those behind damage. An unfinished last batch is no damage: a
// process that dies leaves one.
SalvageDamage VisitLog(const RawFile& file, const VisitSalvaged& visit);
// Each value lies beside its key. No entry is sure, and rotten values are no damage here; behind a
// damaged head the next one is searched for.
SalvageDamage VisitBlobs(const RawFile& file, const VisitSalvaged& visit);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_REPAIR_SALVAGE_FILE_H_
