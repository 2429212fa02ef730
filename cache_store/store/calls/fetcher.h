// Fetcher: looks up a prompt and opens a session on the restore point found. The lookup takes
// references under the lock; bytes are read outside it, by the session.
//
// Thread safe. Ownership: borrows the rest.
#ifndef HEARTH_CACHE_STORE_STORE_CALLS_FETCHER_H_
#define HEARTH_CACHE_STORE_STORE_CALLS_FETCHER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "cache_store/store/background/index_loader.h"
#include "cache_store/store/calls/fetch_session.h"
#include "cache_store/store/calls/prefix_finder.h"

namespace hearth {

class Fetcher {
 public:
  Fetcher(const FetchParts& parts, PrefixFinder* finder, IndexLoader* loader,
          DiskWriter* writer)
      : parts_(parts),
        core_(parts.core),
        state_(&parts.core->state),
        finder_(finder),
        loader_(loader),
        writer_(writer) {}

  // TieredStore::Fetch and FetchById.
  absl::StatusOr<std::unique_ptr<FetchSession>> Fetch(const PrefixQuery& query,
                                                      uint32_t above_tokens, uint32_t max_tokens)
      ABSL_LOCKS_EXCLUDED(state_->mu);
  absl::StatusOr<std::unique_ptr<FetchSession>> FetchById(const Digest& id,
                                                          const std::string& tenant)
      ABSL_LOCKS_EXCLUDED(state_->mu);

 private:
  absl::StatusOr<std::unique_ptr<FetchSession>> Lookup(const PrefixQuery& query,
                                                       uint32_t above_tokens, uint32_t max_tokens)
      ABSL_LOCKS_EXCLUDED(state_->mu);
  std::unique_ptr<FetchSession> Miss(const PrefixQuery& query, Counter why, const char* reason,
                                     uint32_t matched_tokens);
  std::unique_ptr<FetchSessionImpl> BeginFetch(const PrefixFinder::Namespace& space,
                                               SegmentNode* node, std::vector<Digest>* new_points)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  const RestorePointEntry* MakePoint(const PrefixFinder::Namespace& space, SegmentNode* node)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);

  const FetchParts parts_;
  StoreCore* const core_;
  StoreState* const state_;
  PrefixFinder* const finder_;
  IndexLoader* const loader_;
  DiskWriter* const writer_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_FETCHER_H_
