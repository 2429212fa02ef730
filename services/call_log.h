// What is logged of each call of a server: a line at `debug`, and one that everybody sees when it
// was slow.
//
// Thread safety: any thread.
#ifndef HEARTH_SERVICES_CALL_LOG_H_
#define HEARTH_SERVICES_CALL_LOG_H_

#include "services/call_gate.h"
#include "services/metrics.h"

namespace hearth {

// Slower ones are warned of; not of Watch and Lease, which wait by design, nor of Generate and
// Prefill, which take as long as they have to compute.
inline constexpr double kSlowCallSeconds = 10;

// For a CallGate: the metrics get it, and the log.
CallGate::Recorder RecordCalls(Metrics* metrics);

}  // namespace hearth

#endif  // HEARTH_SERVICES_CALL_LOG_H_
