// Scrubber: reads everything on disk again, object by object, and quarantines what has rotted.
//
// Thread safety: Step by one thread at a time; finished_unix_s from any. Ownership: borrows the
// rest.
#ifndef HEARTH_CACHE_STORE_STORE_BACKGROUND_SCRUBBER_H_
#define HEARTH_CACHE_STORE_STORE_BACKGROUND_SCRUBBER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "cache_store/store/background/index_loader.h"
#include "cache_store/store/background/manifest_writer.h"
#include "cache_store/store/background/quarantiner.h"
#include "cache_store/store/background/scrub.h"
#include "cache_store/store/store_core.h"

namespace hearth {

class Scrubber {
 public:
  Scrubber(StoreCore* core, const IndexLoader* loader, Quarantiner* quarantiner,
           ManifestWriter* manifests)
      : core_(core),
        state_(&core->state),
        loader_(loader),
        quarantiner_(quarantiner),
        manifests_(manifests) {}

  // SteppedStore::ScrubStep.
  absl::Duration Step() ABSL_LOCKS_EXCLUDED(state_->mu);
  int64_t finished_unix_s() const { return finished_unix_s_.load(); }  // the last complete pass

 private:
  bool BeginPass(absl::Time now);
  const StoredObject* HoldNext(bool* at_end) ABSL_LOCKS_EXCLUDED(state_->mu);
  void CheckSlice(const StoredObject* object, size_t slice) ABSL_LOCKS_EXCLUDED(state_->mu);
  void CheckObjectRecord(const StoredObject* object) ABSL_LOCKS_EXCLUDED(state_->mu);
  void CheckManifest(const StoredObject* object) ABSL_LOCKS_EXCLUDED(state_->mu);
  void RepairManifest(const Digest& id) ABSL_LOCKS_EXCLUDED(state_->mu);
  bool IsDiskInUse();
  void SaveProgress();

  StoreCore* const core_;
  StoreState* const state_;
  const IndexLoader* const loader_;
  Quarantiner* const quarantiner_;
  ManifestWriter* const manifests_;
  ScrubState scrub_;
  std::atomic<int64_t> finished_unix_s_{0};
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_SCRUBBER_H_
