// AdapterCaches: a worker's caches as one: that of the model alone, and one for each adapter, whose
// keys and values have a fingerprint of their own. A prefix goes to that of its adapter.
//
// Thread safety: once all are added, any thread. Owns the caches. Errors: as theirs.
#ifndef HEARTH_SERVICES_INFERENCE_ADAPTER_CACHES_H_
#define HEARTH_SERVICES_INFERENCE_ADAPTER_CACHES_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "services/inference/explainer.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

class AdapterCaches final : public PrefixCache, public Explainer {
 public:
  // `adapter`: empty: of the model alone, which there must be. `Cache` is a PrefixCache and an
  // Explainer.
  template <typename Cache>
  void Add(const std::string& adapter, std::unique_ptr<Cache> cache) {
    Explainer* const explainer = cache.get();
    caches_[adapter] = {std::move(cache), explainer};
  }

  FetchOutcome Fetch(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     absl::Time deadline) override {
    return Of(prefix)->Fetch(prefix, above_tokens, max_tokens, deadline);
  }
  PublishOutcome Publish(const PublishRequestSpec& spec, absl::Time deadline) override {
    return Of(spec.prefix)->Publish(spec, deadline);
  }
  LeaseOutcome Lease(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     const LeaseTerms& terms, absl::Time deadline) override {
    return Of(prefix)->Lease(prefix, above_tokens, max_tokens, terms, deadline);
  }
  bool Quarantine(const PrefixRequest& prefix, const std::vector<ObjectId>& objects,
                  absl::Time deadline) override {
    return Of(prefix)->Quarantine(prefix, objects, deadline);
  }
  void CancelCalls() override {
    for (const auto& [adapter, sides] : caches_) sides.cache->CancelCalls();
  }
  void Explain(PrefixRequest prefix, absl::Time deadline, ExplainCallback done) override {
    Explainer* const explainer = caches_.at(prefix.adapter).explainer;
    explainer->Explain(std::move(prefix), deadline, std::move(done));
  }

 private:
  // The engine checked that there is such an adapter.
  PrefixCache* Of(const PrefixRequest& prefix) const {
    return caches_.at(prefix.adapter).cache.get();
  }

  // A cache, seen from both of its sides.
  struct Sides {
    std::unique_ptr<PrefixCache> cache;
    Explainer* explainer = nullptr;
  };
  std::map<std::string, Sides> caches_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_ADAPTER_CACHES_H_
