// Scrubber: reads everything on disk again, object by object. What has rotted is written again from
// memory, or handed over.
//
// Thread safety: Step by one thread at a time; finished_unix_s from any. Ownership: borrows the
// rest.
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

// Progress is saved this often: a restart reads at most so much again.
inline constexpr uint64_t kScrubSaveBytes = uint64_t{256} << 20;

// Outlives the process. Objects are read in order of their numbers.
struct ScrubProgress {
  uint64_t next_object = 0;  // 0: no pass is under way
  int64_t started_unix_s = 0;
  int64_t finished_unix_s = 0;  // the last pass that read everything; 0: none yet

  std::string Serialize() const;
  // Of an unreadable text: no progress.
  static ScrubProgress Parse(absl::string_view text);
};

class Scrubber {
 public:
  Scrubber(StoreCore* core, Quarantiner* quarantiner, DiskWriter* writer)
      : core_(core), quarantiner_(quarantiner), writer_(writer) {}

  // SteppedStore::ScrubStep.
  absl::Duration Step() ABSL_LOCKS_EXCLUDED(core_->mu);
  int64_t finished_unix_s() const { return finished_unix_s_.load(); }  // the last complete pass

 private:
  bool BeginPass(absl::Time now);
  StoredObject* HoldNext(bool* at_end) ABSL_LOCKS_EXCLUDED(core_->mu);
  // Above 0: the slice may have been misread, and is to be read again after this pause.
  absl::Duration CheckSlice(StoredObject* object, size_t slice) ABSL_LOCKS_EXCLUDED(core_->mu);
  // With what RAM has of it.
  absl::Status WriteAgain(StoredObject* object) ABSL_LOCKS_EXCLUDED(core_->mu);
  void CheckObjectRecord(StoredObject* object) ABSL_LOCKS_EXCLUDED(core_->mu);
  void CheckManifest(StoredObject* object) ABSL_LOCKS_EXCLUDED(core_->mu);
  void SaveProgress();

  StoreCore* const core_;
  Quarantiner* const quarantiner_;
  DiskWriter* const writer_;
  ScrubProgress progress_;
  size_t next_slice_ = 0;  // of the object
  int rereads_ = 0;        // of that slice
  uint64_t unsaved_bytes_ = 0;
  bool loaded_ = false;
  uint64_t losses_ = 0;  // the disk's, as it last looked
  absl::Time next_step_ = absl::InfinitePast();
  std::atomic<int64_t> finished_unix_s_{0};
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_SCRUBBER_H_
