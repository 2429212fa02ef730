// Logs each call of a server: requests for tokens and calls of a sampled trace at `info`, the
// others at `debug`; as a warning if it was slow.
//
// Thread safety: any thread.
#ifndef HEARTH_SERVICES_SERVING_CALLS_CALL_LOG_H_
#define HEARTH_SERVICES_SERVING_CALLS_CALL_LOG_H_

#include "services/serving/calls/admission.h"
#include "services/serving/metrics.h"

namespace hearth {

// Calls that take longer are logged as warnings. For Watch and Lease, which last by design, the
// time to the first answer counts. Generate and Prefill get extra time for each prompt token that
// was not restored and for each generated token, enough for a slow and busy machine.
inline constexpr double kSlowCallSeconds = 10;
inline constexpr double kSlowPromptTokenSeconds = 0.02;
inline constexpr double kSlowNewTokenSeconds = 0.5;
bool IsSlow(const CallRecord& record);

// Returns a recorder for an Admission, which writes each call to the metrics and to the log.
Admission::Recorder RecordCalls(Metrics* metrics);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CALLS_CALL_LOG_H_
