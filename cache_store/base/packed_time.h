// PackedTime: an absl::Time in half of its memory, for entries of which there are millions.
//
// A plain value in whole nanoseconds, which converts from and to absl::Time. Times before 1678 and
// after 2262 become InfinitePast and InfiniteFuture: the longest time to live ends earlier.
#ifndef HEARTH_CACHE_STORE_BASE_PACKED_TIME_H_
#define HEARTH_CACHE_STORE_BASE_PACKED_TIME_H_

#include <cstdint>
#include <limits>

#include "absl/time/time.h"

namespace hearth {

class PackedTime {
 public:
  PackedTime() = default;  // the Unix epoch, as absl::Time
  // Implicit: fields of this type are used as an absl::Time.
  PackedTime(absl::Time time) : unix_ns_(absl::ToUnixNanos(time)) {}
  operator absl::Time() const {
    if (unix_ns_ == std::numeric_limits<int64_t>::max()) return absl::InfiniteFuture();
    if (unix_ns_ == std::numeric_limits<int64_t>::min()) return absl::InfinitePast();
    return absl::FromUnixNanos(unix_ns_);
  }

 private:
  int64_t unix_ns_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_PACKED_TIME_H_
