// RecentAnswers: the tokens of the last inferences, by tenant and request id, from which a state
// can be saved while they run and after their end.
//
// Thread safety: all methods from any thread. Ownership: shares each answer with the call that
// grows it. Invariants: (1) at most kMaxTokens are kept, where an answer counts for at least
// kMinTokens; beyond them goes the oldest answer of the tenant that has most; (2) an answer is
// found by its own tenant alone.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_RECENT_ANSWERS_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_RECENT_ANSWERS_H_

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/engine/engine.h"

namespace hearth {

// The first answer to one request: its request, and the tokens generated so far.
class RecentAnswer {
 public:
  explicit RecentAnswer(EngineRequest request) : request_(std::move(request)) {}

  void Add(int32_t token) ABSL_LOCKS_EXCLUDED(mutex_);
  // The request that would go on from here: the prompt is all tokens so far, and first_draw the
  // number of those drawn.
  EngineRequest Rest() const ABSL_LOCKS_EXCLUDED(mutex_);

  const EngineRequest& request() const { return request_; }
  // Those that it may come to have.
  uint64_t most_tokens() const {
    return uint64_t{request_.max_new_tokens} + request_.token_ids.size();
  }

 private:
  const EngineRequest request_;
  mutable absl::Mutex mutex_;
  std::vector<int32_t> generated_ ABSL_GUARDED_BY(mutex_);
};

class RecentAnswers {
 public:
  // 16 MiB of token ids.
  static constexpr uint64_t kMaxTokens = uint64_t{4} << 20;
  // Hence at most 64 answers.
  static constexpr uint64_t kMinTokens = uint64_t{64} << 10;

  // Remembers a request from now on, in the place of an earlier one of its tenant and id. Null: it
  // has no id, or asks for more than any model has.
  std::shared_ptr<RecentAnswer> Begin(const EngineRequest& request) ABSL_LOCKS_EXCLUDED(mutex_);
  // Null: this tenant has none of this id, whatever others have.
  std::shared_ptr<RecentAnswer> Find(const std::string& tenant, const std::string& request_id) const
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Answers = std::list<std::shared_ptr<RecentAnswer>>;  // the oldest first
  Answers::const_iterator At(const std::string& tenant, const std::string& request_id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(Answers::const_iterator answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Answers::const_iterator OldestOfLargestTenant() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  Answers answers_ ABSL_GUARDED_BY(mutex_);
  uint64_t tokens_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_RECENT_ANSWERS_H_
