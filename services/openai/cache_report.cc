#include "services/openai/cache_report.h"

#include <utility>

#include "proto/kv_layout.h"
#include "services/inference/calls/inference_conversion.h"
#include "services/rpc/proto_conversion.h"
#include "services/serving/json_value.h"

namespace hearth {

std::string CacheReport(const absl::StatusOr<v1::ExplainResponse>& explained,
                        const StartedInfo& started) {
  Json report = {{"restored_tokens", started.cached_tokens},
                 {"tier", TierName(started.source_tier)},
                 {"load_decision", LoadDecisionName(started.load.decision)}};
  if (!explained.ok()) {
    report["error"] = explained.status().message();
    return JsonLine(report);
  }
  Json boundaries = Json::array();
  for (const v1::BoundaryInfo& boundary : explained->boundaries()) {
    Json made = {{"tokens", boundary.boundary()}};
    if (boundary.usable()) {
      made["tier"] = TierName(FromProto(boundary.slowest_tier()));
    } else {
      made["reason"] = WhyUnusable(boundary);
      made["reason_code"] = boundary.reason_code();
    }
    boundaries.push_back(std::move(made));
  }
  report["boundaries"] = std::move(boundaries);
  // Boundaries that were never stored and are not listed.
  report["omitted_boundaries"] = explained->omitted_boundaries();
  return JsonLine(report);
}

}  // namespace hearth
