// Scrubber: reads all objects on disk again and again, one by one, to find damage. Damaged data is
// written again from RAM, or passed to the quarantiner.
//
// Thread safety: Step by one thread at a time; finished_unix_s from any thread. Ownership: borrows
// the objects that its constructor gets.
#ifndef HEARTH_CACHE_STORE_STORE_BACKGROUND_SCRUBBER_H_
#define HEARTH_CACHE_STORE_STORE_BACKGROUND_SCRUBBER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cache_store/store/background/disk_writer.h"
#include "cache_store/store/background/quarantiner.h"
#include "cache_store/store/store_core.h"

namespace hearth {

// The progress is saved each time this many bytes were read; after a restart, at most this much is
// read again.
inline constexpr uint64_t kScrubSaveBytes = uint64_t{256} << 20;

// Progress of the scrubber, saved on disk. Objects are read in the order of their numbers.
struct ScrubProgress {
  uint64_t next_object = 0;  // number of the next object to read; 0: no pass is running
  int64_t started_unix_s = 0;
  int64_t finished_unix_s = 0;  // Unix time at which the last complete pass ended; 0: none yet

  std::string Serialize() const;
  // Parses saved progress; returns empty progress if the text is invalid.
  static ScrubProgress Parse(absl::string_view text);
};

class Scrubber {
 public:
  Scrubber(StoreCore* core, Quarantiner* quarantiner, DiskWriter* writer)
      : core_(core), quarantiner_(quarantiner), writer_(writer) {}

  // Implements Store::ScrubStep: reads the next slice on disk, if it is due. Returns the pause
  // before the next call.
  absl::Duration Step() ABSL_LOCKS_EXCLUDED(core_->mu);
  // Unix time of the end of the last complete pass; 0: none yet
  int64_t finished_unix_s() const { return finished_unix_s_.load(); }

 private:
  bool BeginPass(absl::Time now);
  StoredObject* HoldNext(bool* at_end) ABSL_LOCKS_EXCLUDED(core_->mu);
  // Verifies a slice on disk. Returns the pause before the slice must be read again, because it may
  // have been misread; 0: done.
  absl::Duration CheckSlice(StoredObject* object, size_t slice) ABSL_LOCKS_EXCLUDED(core_->mu);
  // Writes the object to disk again, from its copy in RAM.
  absl::Status WriteAgain(StoredObject* object) ABSL_LOCKS_EXCLUDED(core_->mu);
  void CheckObjectRecord(StoredObject* object) ABSL_LOCKS_EXCLUDED(core_->mu);
  void CheckManifest(StoredObject* object) ABSL_LOCKS_EXCLUDED(core_->mu);
  void SaveProgress();

  StoreCore* const core_;
  Quarantiner* const quarantiner_;
  DiskWriter* const writer_;
  ScrubProgress progress_;
  size_t next_slice_ = 0;  // index of the next slice of the object
  int rereads_ = 0;        // number of rereads of that slice
  uint64_t unsaved_bytes_ = 0;
  bool loaded_ = false;
  uint64_t losses_ = 0;  // value of DiskTier::losses() at the last step
  absl::Time next_step_ = absl::InfinitePast();
  std::atomic<int64_t> finished_unix_s_{0};
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_SCRUBBER_H_
