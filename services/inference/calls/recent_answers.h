// RecentAnswers: the tokens of recent requests, by tenant and request id. SaveState reads them
// while the requests run and after their end.
//
// Thread safety: all methods from any thread. Ownership: shares each answer with the call that adds
// to it. Invariants: (1) at most kMaxTokens are stored, where each answer counts for at least
// kMinTokens. At the limit, the tenant with the most tokens loses its oldest answer; (2) only the
// tenant of an answer finds it.
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

// RecentAnswer: sample 0 of a request, stored with the request so that SaveState can continue from
// it.
class RecentAnswer {
 public:
  explicit RecentAnswer(EngineRequest request);

  void Add(int32_t token) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns a request that continues the answer: its prompt is all tokens up to now, and its
  // first_draw is the number of generated tokens.
  EngineRequest Rest() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the request without its compiled grammar, which uses more memory than the schema.
  const EngineRequest& request() const { return request_; }
  // Returns the grammar of the answer. Returns null if the answer has no grammar.
  const std::shared_ptr<const GrammarSpec>& grammar() const { return grammar_; }
  // Returns an upper bound of the number of tokens: of the prompt and of the whole answer.
  uint64_t most_tokens() const {
    return uint64_t{request_.max_new_tokens} + request_.token_ids.size();
  }

 private:
  const std::shared_ptr<const GrammarSpec> grammar_;
  const EngineRequest request_;
  mutable absl::Mutex mutex_;
  std::vector<int32_t> generated_ ABSL_GUARDED_BY(mutex_);
};

class RecentAnswers {
 public:
  // Maximum number of stored tokens: 16 MiB of token ids.
  static constexpr uint64_t kMaxTokens = uint64_t{4} << 20;
  // Each answer counts for at least this many tokens, so there are at most 64 answers.
  static constexpr uint64_t kMinTokens = uint64_t{64} << 10;

  // Stores the answer to `request` from now on, in place of an earlier answer of the same tenant
  // and request id. Returns null if the request has no id, or asks for more tokens than any model
  // has.
  std::shared_ptr<RecentAnswer> Begin(const EngineRequest& request) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns null if this tenant has no answer with this request id.
  std::shared_ptr<RecentAnswer> Find(const std::string& tenant, const std::string& request_id) const
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Answers = std::list<std::shared_ptr<RecentAnswer>>;  // the oldest answer first
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
