#include "services/inference/calls/prompt_work.h"

#include <string>
#include <utility>

namespace hearth {

void PrepareRequest(FairPool* pool, const std::string& tenant, uint64_t bytes, MakeRequest make,
                    std::function<void(absl::StatusOr<EngineRequest>)> done) {
  const absl::Status accepted =
      pool->SubmitRequest(tenant, bytes, [make = std::move(make), done] { done(make()); });
  if (!accepted.ok()) done(accepted);
}

}  // namespace hearth
