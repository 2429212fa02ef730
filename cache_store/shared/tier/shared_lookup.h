// SharedLookup: before the store looks up a prompt, loads objects of the prompt that only the
// shared engine has into the store.
//
//   1. Find the longest prefix that the store can restore.
//   2. Ask the engine which objects for longer prefixes exist (Exists).
//   3. Choose the longest prefix of which all objects exist and that the time budget allows.
//   4. Read its objects (Get), verify them, and publish them into the store's RAM.
//
// If an object of the chosen prefix is missing or invalid, the lookup is a miss, and the next
// lookup does not choose this prefix again.
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

// Where each object of one prompt is (in this store, in the engine, or nowhere), and the longest
// boundary that these objects can restore. Not thread safe. Borrows the chain.
class ObjectMap {
 public:
  // kHere: in this store; kEngine: only in the engine
  enum class Place { kNowhere, kHere, kEngine };

  // `usable_here`: the longest boundary that this store can restore without the engine.
  ObjectMap(const KvLayout& layout, const PromptChain& chain, uint32_t usable_here);

  // Returns the objects that a longer boundary may need and this store may not have, to ask the
  // engine for them.
  std::vector<ObjectId> ToProbe() const;
  void Set(const ObjectId& id, Place place) { places_[id] = place; }
  Place Of(const ObjectId& id) const {
    const auto it = places_.find(id);
    return it == places_.end() ? Place::kNowhere : it->second;
  }

  // Returns the boundaries of `candidates` (ascending) that are larger than `above` and whose
  // objects are all in this store or in the engine. One pass over chunks and candidates.
  std::vector<uint32_t> Restorable(absl::Span<const uint32_t> candidates, uint32_t above) const;
  // Returns the objects that `boundary` needs and only the engine has.
  std::vector<ObjectId> NeededFromEngine(uint32_t boundary) const;
  // Returns the number of leading tokens for which this store or the engine has the objects of the
  // global layers; counts whole chunks.
  uint32_t KnownTokens() const;

 private:
  bool Has(uint32_t begin, uint32_t tokens, LayerGroup group) const {
    return Of({begin, tokens, group}) != Place::kNowhere;
  }
  bool HasChunk(size_t chunk, LayerGroup group) const {
    return Has(static_cast<uint32_t>(chunk) * layout_.chunk_tokens, layout_.chunk_tokens, group);
  }
  // Returns whether this store or the engine has the objects of the partial chunk that ends at
  // `boundary`.
  bool HasRemainder(uint32_t boundary) const;

  const KvLayout layout_;
  const PromptChain& chain_;
  const uint32_t usable_here_;
  const bool has_local_, has_global_;
  std::map<ObjectId, Place> places_;
};

class SharedLookup {
 public:
  // Pause after a lookup without any answer. Shorter than the time after which the engine's client
  // closes a silent connection.
  static constexpr absl::Duration kPause = absl::Milliseconds(250);
  // Limit of the time for which a lookup waits until the engine confirms that local entries were
  // not dropped (or twice the time of the last check). Without an answer, the check continues in
  // the background.
  static constexpr absl::Duration kDropCheckWait = absl::Milliseconds(50);
  // Interval in which one lookup may try a load that seems too large for the measured speed and the
  // time budget.
  static constexpr absl::Duration kTryPause = absl::Seconds(1);

  SharedLookup(SharedCore* core, SharedWriter* writer) : core_(core), writer_(writer) {}

  // Remembers the fingerprint, because lookups need its layout.
  void Observe(const Fingerprint& fingerprint);
  std::shared_ptr<const KnownFingerprint> Find(const Digest& fingerprint) const;

  struct LoadResult {
    bool is_hit = false;  // whether a longer restore point was loaded into the store
    // number of leading prompt tokens that the store and the engine have
    uint32_t known_tokens = 0;
    // whether the engine sent a value to this lookup or is sending it to another lookup
    bool is_answered = false;
  };
  // Checks whether all entries of these tenants were dropped. Call before using local entries.
  // Ignores empty names.
  void CheckForDrops(absl::Span<const std::string* const> tenants);
  // Loads objects for a lookup with the parameters of StoreReader::Fetch. Errors are counted as
  // misses, not returned. Sets query->chains.
  LoadResult LoadIntoStore(PrefixQuery* query, uint32_t above_tokens, uint32_t max_tokens);

  struct Known {
    std::shared_ptr<const KnownFingerprint> model;
    // boundaries that can be restored with the engine's objects, ascending
    std::vector<uint32_t> boundaries;
    uint32_t known_tokens = 0;
  };
  // For Explain: returns what the engine has, without loading it.
  Known KnownOf(const PrefixQuery& query, uint32_t usable_here);

 private:
  class Loading;
  struct LoadedObject;
  using LoadedObjects = std::map<ObjectId, LoadedObject>;
  // The result of asking the engine for a tenant's prompt.
  struct Probed {
    std::string tenant;
    SharedPrompt prompt;
    std::unique_ptr<ObjectMap> map;
    // boundaries that can be restored and are longer than the local restore point, ascending
    std::vector<uint32_t> restorable;
    uint32_t boundary = 0;  // boundary that will be loaded; 0: none
    bool is_answered = false;
  };
  struct LookupSpec {
    const PrefixQuery* query = nullptr;
    std::shared_ptr<const KnownFingerprint> model;
    std::vector<uint32_t> candidates;
    uint32_t above = 0;  // number of tokens that the caller has; only longer boundaries are useful
    absl::Time deadline;
  };
  // Returns whether lookups skip the engine now, because a recent lookup used up its time budget
  // without any answer.
  bool is_paused() const { return NowMs() < paused_until_ms_.load(); }
  int64_t NowMs() const { return absl::ToUnixMillis(core_->steady->Now()); }
  // Like CheckForDrops, within the time `most`. Returns false if the engine did not answer in time.
  bool CheckForDropsWithin(absl::Span<const std::string> tenants, absl::Duration most);
  std::unique_ptr<Probed> Probe(const LookupSpec& lookup, const std::string& tenant,
                                uint32_t usable_here);
  // Returns the longest boundary, up to the chosen one, that can be loaded in the remaining time at
  // the measured speed and within the memory limit of loads. 0: none.
  uint32_t Affordable(const Probed& probed, absl::Time deadline);
  void NoteSpeed(uint64_t bytes, absl::Duration took);
  bool MayTry();
  // Loads the chosen restore point. If another lookup is loading it, waits and then finds it in the
  // store.
  bool LoadOnce(const LookupSpec& lookup, Probed* probed) ABSL_LOCKS_EXCLUDED(mu_);
  bool Load(const LookupSpec& lookup, Probed* probed);
  absl::Status Keep(const LookupSpec& lookup, const Probed& probed, const LoadedObjects& loaded);

  SharedCore* const core_;
  SharedWriter* const writer_;
  std::atomic<uint64_t> loading_bytes_{0};
  // Ends of pauses, in milliseconds of the steady clock.
  std::atomic<int64_t> paused_until_ms_{0}, drop_check_paused_until_ms_{0};
  std::atomic<int64_t> drop_check_wait_ms_{absl::ToInt64Milliseconds(kDropCheckWait)};
  std::atomic<uint64_t> bytes_per_s_{0};  // measured speed of loads; 0: not measured yet
  // when MayTry() allows the next load, in milliseconds of the steady clock
  std::atomic<int64_t> next_try_ms_{0};
  FingerprintBook fingerprints_;
  absl::Mutex mu_;
  // restore points that are being loaded
  absl::flat_hash_set<Digest> under_way_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_LOOKUP_H_
