#include "services/inference/counting_prefix_cache.h"

#include <string>
#include <utility>

namespace hearth {
namespace {

template <typename Outcome>
Outcome OrNothing(absl::StatusOr<Outcome> outcome) {
  if (outcome.ok()) return *std::move(outcome);
  Outcome nothing;
  nothing.note = std::string(outcome.status().message());
  return nothing;
}

}  // namespace

FetchOutcome CountingPrefixCache::Fetch(const PrefixRequest& prefix, uint32_t above_tokens,
                                        uint32_t max_tokens, absl::Time deadline) {
  LoadTrial unarmed;
  LoadTrial* load = prefix.load == nullptr ? &unarmed : prefix.load.get();
  uint64_t bytes = 0;
  absl::StatusOr<FetchOutcome> outcome =
      TryFetch(prefix, above_tokens, max_tokens, deadline, load, &bytes);
  if (!outcome.ok() || outcome->usable_tokens == 0) load->OnFailed();
  counters_->CountFetch(FetchName(outcome, *load), bytes);
  return OrNothing(std::move(outcome));
}

PublishOutcome CountingPrefixCache::Publish(const PublishRequestSpec& spec, absl::Time deadline) {
  absl::StatusOr<PublishOutcome> outcome = TryPublish(spec, deadline);
  if (!outcome.ok()) {
    counters_->CountPublish(FailureOutcome(outcome.status()));
  } else {
    counters_->CountPublish(outcome->published_tokens > 0 ? "stored" : "nothing",
                            outcome->bytes_sent);
  }
  return OrNothing(std::move(outcome));
}

LeaseOutcome CountingPrefixCache::Lease(const PrefixRequest& prefix, uint32_t above_tokens,
                                        uint32_t max_tokens, const LeaseTerms& terms,
                                        absl::Time deadline) {
  bool waited = false;
  absl::StatusOr<LeaseOutcome> outcome =
      TryLease(prefix, above_tokens, max_tokens, terms, deadline, &waited);
  counters_->CountLease(!outcome.ok()               ? FailureOutcome(outcome.status())
                        : outcome->lease != nullptr ? "compute"
                        : waited                    ? "waited"
                                                    : "go");
  return outcome.ok() ? *std::move(outcome) : LeaseOutcome();
}

}  // namespace hearth
