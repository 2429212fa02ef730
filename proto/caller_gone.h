// CallerGone: the error of work that is abandoned because its caller no longer waits for the
// result.
//
// Thread safety: a pure function.
#ifndef HEARTH_PROTO_CALLER_GONE_H_
#define HEARTH_PROTO_CALLER_GONE_H_

#include "absl/status/status.h"

namespace hearth {

inline absl::Status CallerGone() { return absl::CancelledError("the caller went away"); }

}  // namespace hearth

#endif  // HEARTH_PROTO_CALLER_GONE_H_
