// The rule by which tenants share streams, threads, queues and their bytes: a tenant takes more of
// something only if it then has at most as much as was free before. Whatever others have, a tenant
// with nothing finds half of what is free. Where jobs end soon, n busy tenants come to equal
// shares; streams that stay open keep what they took. A tenant that is alone takes half.
//
// A pure function.
#ifndef HEARTH_SERVICES_SERVING_CALLS_FAIR_SHARE_H_
#define HEARTH_SERVICES_SERVING_CALLS_FAIR_SHARE_H_

#include <cstdint>

namespace hearth {

// Whether a tenant that has `own` may take `more`, where all tenants together have `taken` of
// `all`.
inline bool IsFairShare(uint64_t own, uint64_t more, uint64_t taken, uint64_t all) {
  return taken <= all && own + more <= all - taken;
}

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CALLS_FAIR_SHARE_H_
