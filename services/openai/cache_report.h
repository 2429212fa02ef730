// CacheReport: the field `usage.hearth_cache` of a response: what the store had of the prompt
// before the request ran, and what was restored.
//
// {"restored_tokens": N, "tier": TIER, "load_decision": DECISION, "boundaries": [...]}. The
// decision is that of v1::Load: with "compute", the worker computed tokens that the store has,
// because computing was faster. A boundary that can be restored has {"tokens": N, "tier": TIER},
// another has {"tokens": N, "reason": TEXT, "reason_code": CODE}. If the store did not answer,
// "error" replaces "boundaries". Thread safety: pure functions.
#ifndef HEARTH_SERVICES_OPENAI_CACHE_REPORT_H_
#define HEARTH_SERVICES_OPENAI_CACHE_REPORT_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/cache_store.pb.h"
#include "worker/engine/engine.h"

namespace hearth {

// Returns JSON of the report. `explained`: the store's answer about the prompt.
std::string CacheReport(const absl::StatusOr<v1::ExplainResponse>& explained,
                        const StartedInfo& started);

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_CACHE_REPORT_H_
