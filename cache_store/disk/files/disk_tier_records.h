// RecordEnds: finds where the last whole record of a RocksDB log ends, from its bytes as they are
// written. Private to disk/. Thread safety: none.
//
// Blocks of a log hold pieces one after the other, none across a block's end; a rest too short for
// a header is zeros. A record is one piece, or a first, some middle ones and a last.
#ifndef HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_RECORDS_H_
#define HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace hearth {

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
