// FromRocks: a status of RocksDB's as one of Abseil's. Private to disk/, where RocksDB's errors
// end.
#ifndef HEARTH_CACHE_STORE_DISK_FILES_ROCKS_STATUS_H_
#define HEARTH_CACHE_STORE_DISK_FILES_ROCKS_STATUS_H_

#include <rocksdb/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace hearth {

// `what` was tried, for the message.
absl::Status FromRocks(const rocksdb::Status& status, absl::string_view what);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_ROCKS_STATUS_H_
