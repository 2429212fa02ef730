// Logs each call of a server: a line at `debug`, and one that everybody sees when it was slow.
//
// Thread safety: any thread.
#ifndef HEARTH_SERVICES_SERVING_CALLS_CALL_LOG_H_
#define HEARTH_SERVICES_SERVING_CALLS_CALL_LOG_H_

#include "services/serving/calls/call_gate.h"
#include "services/serving/metrics.h"

namespace hearth {

// Slower ones are warned of: of Watch and Lease, which last by design, the time to the first answer
// counts; Generate, Ask and Prefill have as much more as a slow machine that does other things,
// too, takes for the tokens of the prompt that were not restored, and for those generated.
inline constexpr double kSlowCallSeconds = 10;
inline constexpr double kSlowPromptTokenSeconds = 0.02;
inline constexpr double kSlowNewTokenSeconds = 0.5;
bool IsSlow(const CallRecord& record);

// For a CallGate: the metrics get it, and the log.
CallGate::Recorder RecordCalls(Metrics* metrics);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CALLS_CALL_LOG_H_
