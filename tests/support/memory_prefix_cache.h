// MemoryPrefixCache: a PrefixCache in memory that never evicts and can be made to misbehave.
//
// Fault model: a fetch may block until it is released, throw, or return any change that `mangle`
// makes to the right answer. A publish may block until it is released, or store nothing. Bytes are
// copied in and out, as over a network. Thread safety: all methods; set the hooks before the first
// request.
#ifndef HEARTH_TESTS_SUPPORT_MEMORY_PREFIX_CACHE_H_
#define HEARTH_TESTS_SUPPORT_MEMORY_PREFIX_CACHE_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/kv_layout.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

class MemoryPrefixCache : public PrefixCache {
 public:
  explicit MemoryPrefixCache(const KvLayout& layout) : layout_(layout) {}

  FetchOutcome Fetch(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     absl::Duration timeout) override;
  PublishOutcome Publish(const PublishRequestSpec& spec, absl::Duration timeout) override;
  bool Quarantine(const PrefixRequest& prefix, const std::vector<ObjectId>& objects,
                  absl::Duration timeout) override;

  // For `mangle`: lends the objects in device memory, as a store may. Whole chunks are only there,
  // shorter objects also in host memory.
  void Lend(FetchOutcome* outcome) const;

  // Hooks that are called at the start of each call, on the calling thread. They may block or
  // throw.
  std::function<void()> before_fetch;
  std::function<void()> before_publish;
  std::function<void(FetchOutcome*)> mangle;
  bool refuse_publishes = false;
  Tier tier = Tier::kHost;  // the tier that fetches report as their source

  // Replaces the bytes of an object of `prefix` and updates its digests, as if the worker that
  // published it had computed wrong bytes. REQUIRES: the object is stored.
  void Poison(const PrefixRequest& prefix, const ObjectId& id) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<ObjectId> quarantined() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns when `count` publishes were stored or refused as a conflict.
  void WaitForPublishes(size_t count) const ABSL_LOCKS_EXCLUDED(mu_);
  // Removes all entries, like a store that has lost its disk.
  void Clear() ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<uint32_t> BoundariesOf(const std::string& tenant) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns how many objects were published again with bytes that differ from the stored bytes.
  int conflicts() const ABSL_LOCKS_EXCLUDED(mu_);
  int fetches() const ABSL_LOCKS_EXCLUDED(mu_);
  uint32_t last_above_tokens() const ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<PublishRequestSpec> published() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Point {
    std::string tenant;
    uint32_t boundary = 0;
  };
  std::string ObjectKey(const PrefixRequest& prefix, const ObjectId& id) const;
  std::string PointKey(const PrefixRequest& prefix, uint32_t boundary) const;
  std::vector<uint32_t> InnerCuts(const PrefixRequest& prefix, uint32_t end) const;
  bool Store(const PublishRequestSpec& spec, PublishOutcome* outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const KvLayout layout_;
  mutable absl::Mutex mu_;
  std::map<std::string, std::shared_ptr<const KvObject>> objects_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Point> points_ ABSL_GUARDED_BY(mu_);
  std::vector<PublishRequestSpec> published_ ABSL_GUARDED_BY(mu_);
  std::vector<ObjectId> quarantined_ ABSL_GUARDED_BY(mu_);
  int conflicts_ ABSL_GUARDED_BY(mu_) = 0;
  int fetches_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t last_above_tokens_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_MEMORY_PREFIX_CACHE_H_
