// ManifestAdopter: adds the restore points of manifests on disk to the catalog.
//
// Check runs without the lock, since it hashes; Adopt under it. Thread safe. Ownership: borrows the
// core.
#ifndef HEARTH_CACHE_STORE_STORE_BACKGROUND_MANIFEST_ADOPTER_H_
#define HEARTH_CACHE_STORE_STORE_BACKGROUND_MANIFEST_ADOPTER_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "cache_store/base/prompt_chain.h"
#include "cache_store/store/background/disk_writer.h"
#include "cache_store/store/background/unloaded_index.h"
#include "cache_store/store/store_core.h"

namespace hearth {

// A manifest on its way into the catalog. A plain value.
struct ReadManifest {
  // The id of its restore point; zeros when unknown.
  Digest point() const;

  ManifestRecord record;
  std::shared_ptr<const KnownFingerprint> model;  // null: it is of no use
  PromptChain chain;
};

class ManifestAdopter {
 public:
  explicit ManifestAdopter(StoreCore* core) : core_(core), state_(&core->state) {}

  ReadManifest Check(ManifestRecord record, const UnloadedIndex& unloaded) const
      ABSL_LOCKS_EXCLUDED(state_->mu);
  // Rebuilds the path and the restore point. False: it does not match its objects.
  bool Adopt(const ReadManifest& read, UnloadedIndex* unloaded)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);

 private:
  StoreCore* const core_;
  StoreState* const state_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_MANIFEST_ADOPTER_H_
