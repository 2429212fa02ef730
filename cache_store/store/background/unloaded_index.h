// UnloadedIndex: the restore points and objects of a data folder that are not in the catalog yet.
//
// Made from one pass over the records, which reads of a manifest only the numbers of its objects.
// From then on the store knows for any prompt which manifests concern it, and loads these out of
// turn; the others follow, the last used first. Each manifest is done once: adopted by the catalog,
// or found to be of no use. Thread safety: models, pins, uses and ids never change, objects() not
// once all manifests are done; all else under the store's mutex. Ownership: adopted objects are
// held, each once, as long as this lives, since a manifest that is still to come may name them.
#ifndef HEARTH_CACHE_STORE_STORE_BACKGROUND_UNLOADED_INDEX_H_
#define HEARTH_CACHE_STORE_STORE_BACKGROUND_UNLOADED_INDEX_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "cache_store/catalog/stored_object.h"
#include "cache_store/disk/disk_tier.h"

namespace hearth {

class UnloadedIndex {
 public:
  using Models = std::map<std::pair<std::string, Digest>, std::shared_ptr<const KnownFingerprint>>;
  struct Object {
    ObjectRecord record;
    const StoredObject* adopted = nullptr;  // null until a manifest names it; held
    // The manifest with the latest end, then the newest, of those that name it and whose objects
    // are all there; 0: none. And that end, in unix seconds.
    uint64_t manifest = 0;
    uint64_t until = 0;
  };
  using Objects = absl::flat_hash_map<uint64_t, Object>;

  explicit UnloadedIndex(DiskContents contents);

  const Models& models() const { return models_; }
  bool IsPinned(uint64_t manifest) const { return pinned_.contains(manifest); }
  // Its last use as noted, in unix seconds; 0 when none was.
  uint64_t UseOf(uint64_t manifest) const {
    const auto noted = uses_.find(manifest);
    return noted == uses_.end() ? 0 : noted->second;
  }
  // Manifests that are gone, though uses of them were noted.
  const std::vector<uint64_t>& stray_uses() const { return stray_uses_; }
  // Above every number in use on disk.
  uint64_t next_number() const { return next_number_; }
  // Objects whose record could not be read.
  const std::vector<uint64_t>& unreadable_objects() const { return unreadable_objects_; }

  size_t manifests() const { return manifests_.size(); }
  size_t left() const { return left_; }
  // Ids of the restore points that the manifests may belong to.
  std::vector<Digest> Ids() const;
  // At most `most` that are not done, the last used first; at the end all that were postponed.
  std::vector<uint64_t> Next(size_t most);
  // It could not be read. After kMaxTries it is done, and counted in given_up().
  static constexpr uint8_t kMaxTries = 60;
  void Postpone(uint64_t manifest);
  size_t given_up() const { return given_up_; }
  // The manifests to load before the catalog shows all that is stored of this prompt, or this
  // restore point; newest first. None where two manifests or objects have one key, as a crash may
  // leave them: then their order decides which counts, and all come newest first. In the portable
  // class remainders are found by their tokens: those after a chunk of the chain count, those of
  // prompts shorter than a chunk wait for their turn.
  std::vector<uint64_t> Touching(const PromptChain& chain, Exactness exactness) const;
  std::vector<uint64_t> EndingAt(const Digest& key) const;
  // Whether a manifest of this key is not done yet; of two, the later one.
  bool IsPendingAt(const Digest& key) const;
  // False: it was done before.
  bool MarkDone(uint64_t manifest);

  Objects& objects() { return objects_; }

 private:
  struct Pending {
    uint64_t number = 0;
    bool is_done = false;
    uint8_t tries = 0;
  };
  std::vector<Pending>::const_iterator Find(uint64_t manifest) const;
  bool IsPending(uint64_t manifest) const;  // not done yet
  bool IsFresh(uint64_t manifest) const;    // pending, and not postponed
  void AddKeys(const std::vector<ManifestNames>& manifests);
  void Order(const std::vector<ManifestNames>& manifests);

  Models models_;
  absl::flat_hash_set<uint64_t> pinned_;
  absl::flat_hash_map<uint64_t, uint64_t> uses_;
  std::vector<uint64_t> stray_uses_;
  std::vector<uint64_t> unreadable_objects_;
  uint64_t next_number_ = 1;

  std::vector<Pending> manifests_;  // ascending by number
  size_t left_ = 0;
  // Their numbers in the order of last use, the last one last. All from end_ on are done, or
  // postponed.
  std::vector<uint64_t> order_;
  size_t end_ = 0;
  std::vector<uint64_t> postponed_;
  size_t given_up_ = 0;
  Objects objects_;
  bool ambiguous_ = false;
  absl::flat_hash_map<Digest, uint64_t> ending_at_;                  // manifests
  absl::flat_hash_map<Digest, std::array<uint64_t, 2>> objects_of_;  // by LayerGroup; 0: none
  // Manifests that end inside a chunk, by the key of the chunk before.
  absl::flat_hash_map<Digest, std::vector<uint64_t>> remainders_of_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_UNLOADED_INDEX_H_
