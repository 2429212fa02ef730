// SharedLookup: before the store looks up a prompt, loads the prompt's objects that only the shared
// engine has into the store.
//
//   local objects -> Exists for all objects that a longer boundary may need -> the restore rule
//   -> Get -> a publish into the store's RAM
//
// If any object of the chosen boundary is missing or invalid, the lookup is a miss, and the next
// lookup knows it. Values are trusted only after they were opened.
//
// Thread safety: all methods from any thread. Ownership: borrows core and writer.
#ifndef HEARTH_CACHE_STORE_SHARED_TIER_SHARED_LOOKUP_H_
#define HEARTH_CACHE_STORE_SHARED_TIER_SHARED_LOOKUP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "cache_store/catalog/fingerprint_book.h"
#include "cache_store/shared/shared_object.h"
#include "cache_store/shared/tier/shared_core.h"
#include "cache_store/shared/tier/shared_writer.h"

namespace hearth {

// Where each object of one prompt is, and the longest boundary that these objects can restore. Not
// thread safe. Borrows the chain.
class ObjectMap {
 public:
  enum class Place { kNowhere, kHere, kEngine };  // kHere: in this store

  // `usable_here`: the longest restore point of the prompt that this store has, with all objects it
  // needs.
  ObjectMap(const KvLayout& layout, const PromptChain& chain, uint32_t usable_here);

  // Returns the objects that a longer boundary may need and that this store may lack.
  std::vector<ObjectId> ToProbe() const;
  void Set(const ObjectId& id, Place place) { places_[id] = place; }
  Place Of(const ObjectId& id) const {
    const auto it = places_.find(id);
    return it == places_.end() ? Place::kNowhere : it->second;
  }

  // Returns the boundaries of `candidates` (ascending) that are larger than `above` and whose
  // objects are all in this store or in the engine, ascending. One pass over chunks and candidates.
  std::vector<uint32_t> Restorable(absl::Span<const uint32_t> candidates, uint32_t above) const;
  // Returns the objects that `boundary` needs and the engine has.
  std::vector<ObjectId> NeededFromEngine(uint32_t boundary) const;
  // Returns the tokens in the leading whole chunks whose global objects are in this store or in the
  // engine.
  uint32_t KnownTokens() const;

 private:
  bool Has(uint32_t begin, uint32_t tokens, LayerGroup group) const {
    return Of({begin, tokens, group}) != Place::kNowhere;
  }
  bool HasChunk(size_t chunk, LayerGroup group) const {
    return Has(static_cast<uint32_t>(chunk) * layout_.chunk_tokens, layout_.chunk_tokens, group);
  }
  // Whether the objects of the remainder, after the whole chunks before `boundary`, are somewhere.
  bool HasRemainder(uint32_t boundary) const;

  const KvLayout layout_;
  const PromptChain& chain_;
  const uint32_t usable_here_;
  const bool has_local_, has_global_;
  std::map<ObjectId, Place> places_;
};

class SharedLookup {
 public:
  // Shorter than the time in which the engine's client notices a silent server.
  static constexpr absl::Duration kPause = absl::Milliseconds(250);
  // A lookup waits at most this long, or twice as long as the last check took, for the engine to
  // confirm that the local entries were not dropped. If the engine does not answer in time, the
  // check continues in the background.
  static constexpr absl::Duration kDropCheckWait = absl::Milliseconds(50);
  // Once in this time, a lookup may try a load that is too large for the measured speed and the
  // budget.
  static constexpr absl::Duration kTryPause = absl::Seconds(1);

  SharedLookup(SharedCore* core, SharedWriter* writer) : core_(core), writer_(writer) {}

  // Remembers the fingerprint; lookups need its layout.
  void Observe(const Fingerprint& fingerprint);
  std::shared_ptr<const KnownFingerprint> Find(const Digest& fingerprint) const;

  struct LoadResult {
    bool is_hit = false;        // a longer restore point was loaded into the store
    uint32_t known_tokens = 0;  // leading tokens of the prompt that the store and the engine have
    bool is_answered = false;   // the engine sent a value, or is sending it to another lookup
  };
  // Call before local entries are used: checks whether all entries of these tenants were dropped.
  // Empty names are ignored.
  void CheckForDrops(absl::Span<const std::string* const> tenants);
  // As StoreReader::Fetch, but errors are counted as misses and not returned. Sets the query's
  // chains.
  LoadResult LoadIntoStore(PrefixQuery* query, uint32_t above_tokens, uint32_t max_tokens);

  struct Known {
    std::shared_ptr<const KnownFingerprint> model;
    std::vector<uint32_t> boundaries;  // ascending; restorable with the engine's objects
    uint32_t known_tokens = 0;
  };
  // For Explain: loads nothing.
  Known KnownOf(const PrefixQuery& query, uint32_t usable_here);

 private:
  class Loading;
  struct LoadedObject;
  using LoadedObjects = std::map<ObjectId, LoadedObject>;
  // A prompt of a tenant in the engine.
  struct Probed {
    std::string tenant;
    SharedPrompt prompt;
    std::unique_ptr<ObjectMap> map;
    std::vector<uint32_t> restorable;  // boundaries above the local restore point, ascending
    uint32_t boundary = 0;             // the boundary to load; 0: none
    bool is_answered = false;
  };
  struct LookupSpec {
    const PrefixQuery* query = nullptr;
    std::shared_ptr<const KnownFingerprint> model;
    std::vector<uint32_t> candidates;
    uint32_t above = 0;  // only longer boundaries help
    absl::Time deadline;
  };
  // Whether a recent lookup used up its budget without any answer. Lookups skip the engine during
  // the pause and so do not wait.
  bool is_paused() const { return NowMs() < paused_until_ms_.load(); }
  int64_t NowMs() const { return absl::ToUnixMillis(core_->steady->Now()); }
  // Returns false if the engine did not answer in time.
  bool CheckForDropsWithin(absl::Span<const std::string> tenants, absl::Duration most);
  std::unique_ptr<Probed> Probe(const LookupSpec& lookup, const std::string& tenant,
                                uint32_t usable_here);
  // Returns the longest boundary up to the probed boundary that fits the remaining time, at the
  // measured speed, and the memory limit for loads. 0: none.
  uint32_t Affordable(const Probed& probed, absl::Time deadline);
  void NoteSpeed(uint64_t bytes, absl::Duration took);
  bool MayTry();
  // Loads each restore point once at a time. A concurrent lookup of the same restore point waits
  // for the load and then finds it in the store.
  bool LoadOnce(const LookupSpec& lookup, Probed* probed) ABSL_LOCKS_EXCLUDED(mu_);
  bool Load(const LookupSpec& lookup, Probed* probed);
  absl::Status Keep(const LookupSpec& lookup, const Probed& probed, const LoadedObjects& loaded);

  SharedCore* const core_;
  SharedWriter* const writer_;
  std::atomic<uint64_t> loading_bytes_{0};
  // By the steady clock.
  std::atomic<int64_t> paused_until_ms_{0}, drop_check_paused_until_ms_{0};
  std::atomic<int64_t> drop_check_wait_ms_{absl::ToInt64Milliseconds(kDropCheckWait)};
  std::atomic<uint64_t> bytes_per_s_{0};  // measured by loads; 0: no load yet
  std::atomic<int64_t> next_try_ms_{0};   // by the steady clock
  FingerprintBook fingerprints_;
  absl::Mutex mu_;
  absl::flat_hash_set<Digest> under_way_ ABSL_GUARDED_BY(mu_);  // being loaded
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_LOOKUP_H_
