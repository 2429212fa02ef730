// What an error that a Redis server answers means for a client.
//
// Pure functions.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_ERROR_REPLY_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_ERROR_REPLY_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cache_store/shared/redis/node_address.h"

namespace hearth {

enum class ErrorMeaning {
  kMoved,     // another node has the slot
  kAsk,       // another node has this key already, and is to have the slot
  kTryAgain,  // keys are on their way
  kReadOnly,  // it was a primary, and is none any more
  kNotNow,    // it loads, or its cluster is down
  kNoCluster,
  kFinal,  // the command's own error
};

ErrorMeaning MeaningOf(absl::string_view error);

// Where an error of kMoved or kAsk points to; null: nowhere. A host that is left out is `teller`'s.
std::optional<NodeAddress> TargetOf(absl::string_view error, const NodeAddress& teller);

// As a caller gets it: kResourceExhausted, kPermissionDenied, kUnavailable, kDataLoss (the value is
// of another kind), else kInternal. Its text is cut, and free of control characters.
absl::Status StatusOfError(absl::string_view error);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_ERROR_REPLY_H_
