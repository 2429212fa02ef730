// Logs each call of a server: a line at `debug`, and a warning when it was slow.
//
// Thread safety: any thread.
#ifndef HEARTH_SERVICES_SERVING_CALLS_CALL_LOG_H_
#define HEARTH_SERVICES_SERVING_CALLS_CALL_LOG_H_

#include "services/serving/calls/admission.h"
#include "services/serving/metrics.h"

namespace hearth {

// Slower calls get a warning. Of Watch and Lease, which last by design, the time to the first
// answer counts; Generate and Prefill have extra time for each prompt token that was not
// restored and each token generated, enough for a slow and busy machine.
inline constexpr double kSlowCallSeconds = 10;
inline constexpr double kSlowPromptTokenSeconds = 0.02;
inline constexpr double kSlowNewTokenSeconds = 0.5;
bool IsSlow(const CallRecord& record);

// For a Admission: records each call in the metrics and the log.
Admission::Recorder RecordCalls(Metrics* metrics);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CALLS_CALL_LOG_H_
