#include "cache_store/retention/retention.h"

#include "cache_store/retention/learning_retention.h"
#include "cache_store/retention/lru_retention.h"

namespace hearth {

std::unique_ptr<Retention> MakeRetention(RetentionPolicy policy, Retention::Depend depend) {
  if (policy == RetentionPolicy::kLru) return std::make_unique<LruRetention>();
  return std::make_unique<LearningRetention>(depend);
}

}  // namespace hearth
