#include "cache_store/retention.h"

#include "cache_store/learning_retention.h"
#include "cache_store/lru_retention.h"

namespace hearth {

std::unique_ptr<Retention> MakeRetention(RetentionPolicy policy, Retention::Depend depend) {
  if (policy == RetentionPolicy::kLru) return std::make_unique<LruRetention>();
  return std::make_unique<LearningRetention>(depend);
}

}  // namespace hearth
