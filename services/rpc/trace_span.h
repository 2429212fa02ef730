// TraceSpan: one call in a distributed trace, in the terms of W3C Trace Context.
//
// Thread safety: pure functions apart from random numbers.
#ifndef HEARTH_SERVICES_RPC_TRACE_SPAN_H_
#define HEARTH_SERVICES_RPC_TRACE_SPAN_H_

#include <string>

#include "absl/strings/string_view.h"

namespace hearth {

// The key in gRPC's metadata and the name of the HTTP header.
inline constexpr char kTraceparentKey[] = "traceparent";

struct TraceSpan {
  std::string trace_id, span_id;  // 32 and 16 lowercase hex digits; empty: no span
  std::string parent_id;          // the caller's span; empty: the trace begins here
  bool is_sampled = false;        // the caller records the trace

  // Returns the `traceparent` of calls that this call makes; empty without a span.
  std::string Traceparent() const;
};

// Returns a new span in the trace of `traceparent`, or in a new trace if `traceparent` is empty or
// invalid. A new trace is not sampled.
TraceSpan NewSpan(absl::string_view traceparent);

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_TRACE_SPAN_H_
