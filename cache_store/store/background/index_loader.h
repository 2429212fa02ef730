// IndexLoader: fills the index after a start. Opening reads all records once, but of manifests only
// the objects that they name; the manifests themselves are read, checked and adopted a few at a
// time, before Open returns or, with load_in_background, while the store serves.
//
// Until all are adopted, a lookup first adopts the manifests that its prompt needs, and so finds
// what it would find later. Calls that change what is stored wait: nothing is written or evicted on
// the basis of half an index, so a close or a crash meanwhile loses nothing and no limit is passed.
// Thread safe but for Recover and Step, which one thread calls. Ownership: borrows the rest.
#ifndef HEARTH_CACHE_STORE_STORE_BACKGROUND_INDEX_LOADER_H_
#define HEARTH_CACHE_STORE_STORE_BACKGROUND_INDEX_LOADER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
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
  uint64_t drop_number = 0;  // that the chain was made under
};

class IndexLoader {
 public:
  // Under one hold of the lock: about a millisecond, some 20 for the longest prompts.
  static constexpr size_t kManifestsAtOnce = 8;

  // `patience`: how long calls that change the store wait for the index.
  IndexLoader(StoreCore* core, DiskWriter* writer, absl::Duration patience)
      : core_(core), writer_(writer), patience_(patience) {}

  // Rebuilds the index, or begins to. Before any other method, once.
  absl::Status Recover();
  // SteppedStore::LoadStep.
  absl::Duration Step() ABSL_LOCKS_EXCLUDED(core_->mu);
  bool is_loading() const { return is_loading_.load(); }

  // Loads the manifests that a lookup of this prompt may find. One that cannot be read now is not
  // found.
  void LoadFor(const PromptChain& chain, const KvLayout& layout) ABSL_LOCKS_EXCLUDED(core_->mu);
  absl::Status LoadPoint(const Digest& id) ABSL_LOCKS_EXCLUDED(core_->mu);
  absl::Status WaitUntilLoaded() ABSL_LOCKS_EXCLUDED(core_->mu);  // kUnavailable after `patience`

  // Null: all is loaded.
  UnloadedIndex* unloaded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu) {
    return unloaded_.get();
  }

  // The damage that the start found on disk; constant once Recover has returned.
  const std::vector<std::string>& damage() const { return damage_; }
  absl::Status CheckIsWhole() const;  // as far as the start could tell

 private:
  // False: none is left.
  absl::StatusOr<bool> LoadNext() ABSL_LOCKS_EXCLUDED(core_->mu);
  absl::Status LoadManifests(absl::Span<const uint64_t> numbers) ABSL_LOCKS_EXCLUDED(core_->mu);
  // Hashes, so without the lock.
  ReadManifest Check(ManifestRecord record, const UnloadedIndex& unloaded) const
      ABSL_LOCKS_EXCLUDED(core_->mu);
  // Rebuilds the path and the restore point. False: it does not match its objects.
  bool Adopt(const ReadManifest& read, UnloadedIndex* unloaded)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  absl::Status Finish() ABSL_LOCKS_EXCLUDED(core_->mu);
  void NoteDamage(std::vector<std::string> damage);
  void NoteLost() ABSL_LOCKS_EXCLUDED(core_->mu);
  void NoteUseless(uint64_t number, const ReadManifest& read)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void AdoptUses(absl::Span<const Digest> points) ABSL_LOCKS_EXCLUDED(core_->mu);

  StoreCore* const core_;
  DiskWriter* const writer_;
  const absl::Duration patience_;
  std::shared_ptr<UnloadedIndex> unloaded_ ABSL_GUARDED_BY(core_->mu);
  std::atomic<bool> is_loading_{false};     // follows unloaded_: saves taking the lock
  std::atomic<bool> names_retired_{false};  // a manifest that was not adopted
  std::vector<std::string> damage_;
  // Ids of manifests that were not adopted; zeros: unknown.
  std::vector<Digest> useless_ ABSL_GUARDED_BY(core_->mu);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_INDEX_LOADER_H_
