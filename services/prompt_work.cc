#include "services/prompt_work.h"

#include <memory>
#include <string>
#include <utility>

namespace hearth {

void PreparePrompt(FairPool* pool, uint64_t bytes, MakePrompt make, EngineRequest request,
                   std::function<void(absl::StatusOr<EngineRequest>)> done) {
  const std::string tenant = request.tenant;
  const absl::Status accepted = pool->Submit(
      tenant, bytes, [make = std::move(make), request = std::move(request), done]() mutable {
        absl::StatusOr<Prompt> prompt = make();
        if (!prompt.ok()) return done(prompt.status());
        request.token_ids = std::move(prompt->token_ids);
        request.breakpoints = std::move(prompt->breakpoints);
        done(std::move(request));
      });
  if (!accepted.ok()) done(accepted);
}

}  // namespace hearth
