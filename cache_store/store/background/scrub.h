// The scrubber's place and pace: everything on disk is read again, slowly, so that rot is found
// before somebody needs the bytes. Plain values; the reading is Scrubber's.
#ifndef HEARTH_CACHE_STORE_STORE_BACKGROUND_SCRUB_H_
#define HEARTH_CACHE_STORE_STORE_BACKGROUND_SCRUB_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace hearth {

// While others use the disk, at this part of the rate: rot is found later, not never.
inline constexpr uint64_t kScrubYield = 4;
// At most so much is read again after a restart.
inline constexpr uint64_t kScrubSaveBytes = uint64_t{256} << 20;

// Outlives the process. Objects are read in order of their numbers.
struct ScrubProgress {
  uint64_t next_object = 0;  // 0: no pass is under way
  int64_t started_unix_s = 0;
  int64_t finished_unix_s = 0;  // the last pass that read everything; 0: none yet

  std::string Serialize() const;
  // An unreadable text begins anew.
  static ScrubProgress Parse(absl::string_view text);
};

// The scrubber's, used by one thread at a time.
struct ScrubState {
  ScrubProgress progress;
  size_t next_slice = 0;  // of the object
  uint64_t unsaved_bytes = 0;
  uint64_t foreground_bytes = 0;  // what others had read and written when it last looked
  bool loaded = false;
  absl::Time next_step = absl::InfinitePast();
};

// How long to wait after `bytes` were read at `rate` bytes a second.
absl::Duration ScrubPause(uint64_t bytes, uint64_t rate, bool disk_in_use);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_SCRUB_H_
