// SharedLookup: brings what the shared engine has more of a prompt than the store into the store,
// before the store looks for it.
//
//   what is here -> Exists for all that a longer boundary may need -> the restore rule -> Get
//   -> a publish into the store's RAM
//
// A boundary of which anything is missing or bad by then is a miss; the next lookup knows of it.
// What the engine gives is believed once it is opened.
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

// Where the objects of one prompt can be had, and the longest boundary that they make. Not thread
// safe. Borrows the chain.
class ObjectMap {
 public:
  enum class Place { kNowhere, kHere, kEngine };  // kHere: in this store, or loaded by this lookup

  // `usable_here`: the longest restore point of the prompt that this store has; its objects are.
  ObjectMap(const KvLayout& layout, const PromptChain& chain, uint32_t usable_here);

  // The objects that a longer boundary may need and this store is not known to have.
  std::vector<ObjectId> ToProbe() const;
  void Set(const ObjectId& id, Place place) { places_[id] = place; }
  Place Of(const ObjectId& id) const {
    const auto it = places_.find(id);
    return it == places_.end() ? Place::kNowhere : it->second;
  }

  // Those of `candidates` (ascending) above `above` all of whose objects are somewhere, ascending.
  // One pass over chunks and candidates, however many there are.
  std::vector<uint32_t> Restorable(absl::Span<const uint32_t> candidates, uint32_t above) const;
  // Of the objects that `boundary` needs.
  std::vector<ObjectId> NeededFromEngine(uint32_t boundary) const;
  // Whole chunks from the beginning on whose global objects are somewhere, in tokens.
  uint32_t KnownTokens() const;

 private:
  bool Has(uint32_t begin, uint32_t tokens, LayerGroup group) const {
    return Of({begin, tokens, group}) != Place::kNowhere;
  }
  bool HasChunk(size_t chunk, LayerGroup group) const {
    return Has(static_cast<uint32_t>(chunk) * layout_.chunk_tokens, layout_.chunk_tokens, group);
  }
  // Behind the whole chunks before the boundary.
  bool HasRemainder(uint32_t boundary) const;

  const KvLayout layout_;
  const PromptChain& chain_;
  const uint32_t usable_here_;
  const bool has_local_, has_global_;
  std::map<ObjectId, Place> places_;
};

class SharedLookup {
 public:
  // What the engine's client takes longer to notice that a server is silent.
  static constexpr absl::Duration kPause = absl::Milliseconds(250);
  // What is here waits no longer for the engine's word that it was not dropped, or twice as long as
  // the last one took. An engine that does not tell by then is asked beside the answer.
  static constexpr absl::Duration kHearPatience = absl::Milliseconds(50);
  // A lookup that wants more than the engine gave lately within the budget tries it nevertheless,
  // one in this time.
  static constexpr absl::Duration kTryPause = absl::Seconds(1);

  SharedLookup(SharedCore* core, SharedWriter* writer) : core_(core), writer_(writer) {}

  // A lookup needs the layout.
  void Observe(const Fingerprint& fingerprint);
  std::shared_ptr<const KnownFingerprint> Find(const Digest& fingerprint) const;

  struct Brought {
    bool is_hit = false;        // a longer restore point is in the store now
    uint32_t known_tokens = 0;  // of the prompt, by the engine
    bool is_answered = false;   // the engine gave something, or gives it to another lookup
  };
  // Before what is here is answered with: asks whether all of these tenants was dropped. Empty
  // names are none.
  void Hear(absl::Span<const std::string* const> tenants);
  // As StoreReader::Fetch, but that nothing is said of errors: they are misses, and counted.
  // Sets the query's chains.
  Brought Bring(PrefixQuery* query, uint32_t above_tokens, uint32_t max_tokens);

  struct Known {
    std::shared_ptr<const KnownFingerprint> model;
    std::vector<uint32_t> boundaries;  // ascending; restorable with what the engine has
    uint32_t known_tokens = 0;
  };
  // For Explain: nothing is brought.
  Known KnownOf(const PrefixQuery& query, uint32_t usable_here);

 private:
  class Loading;
  struct LoadedObject;
  using LoadedObjects = std::map<ObjectId, LoadedObject>;
  // A tenant's prompt in the engine.
  struct Probed {
    std::string tenant;
    SharedPrompt prompt;
    std::unique_ptr<ObjectMap> map;
    std::vector<uint32_t> restorable;  // boundaries above what is here, ascending
    uint32_t boundary = 0;             // the longest of them that is wanted; 0: none
    bool is_answered = false;
  };
  struct Question {
    const PrefixQuery* query = nullptr;
    std::shared_ptr<const KnownFingerprint> model;
    std::vector<uint32_t> candidates;
    uint32_t above = 0;  // lower boundaries are of no use
    absl::Time deadline;
  };
  // A lookup ran out of its budget a moment ago without any answer: who does without the engine
  // now waits less.
  bool is_paused() const { return NowMs() < paused_until_ms_.load(); }
  int64_t NowMs() const { return absl::ToUnixMillis(core_->steady->Now()); }
  // False: the engine did not tell in time.
  bool HearWithin(absl::Span<const std::string> tenants, absl::Duration most);
  std::unique_ptr<Probed> Probe(const Question& question, const std::string& tenant,
                                uint32_t usable_here);
  // The longest boundary up to the probed one that can be loaded in the time that is left, as fast
  // as the engine was, and in the memory that loads may take. 0: none.
  uint32_t Affordable(const Probed& probed, absl::Time deadline);
  void NoteSpeed(uint64_t bytes, absl::Duration took);
  bool MayTry();
  // Once at a time for each restore point: who comes meanwhile waits for it, and finds it here.
  bool LoadOnce(const Question& question, Probed* probed) ABSL_LOCKS_EXCLUDED(mu_);
  bool Load(const Question& question, Probed* probed);
  absl::Status Keep(const Question& question, const Probed& probed, const LoadedObjects& loaded);

  SharedCore* const core_;
  SharedWriter* const writer_;
  std::atomic<uint64_t> loading_bytes_{0};
  std::atomic<int64_t> paused_until_ms_{0};  // by the steady clock
  std::atomic<int64_t> deaf_until_ms_{0};    // the same, of Hear alone
  std::atomic<int64_t> hear_patience_ms_{absl::ToInt64Milliseconds(kHearPatience)};
  std::atomic<uint64_t> bytes_per_s_{0};  // of loads; 0: there was none
  std::atomic<int64_t> next_try_ms_{0};   // by the steady clock
  FingerprintBook fingerprints_;
  absl::Mutex mu_;
  absl::flat_hash_set<Digest> under_way_ ABSL_GUARDED_BY(mu_);  // being loaded
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_LOOKUP_H_
