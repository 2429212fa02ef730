// The rule by which tenants share streams, threads, queues and bytes: a tenant may take more only
// if it then has at most as much as was free before. So a tenant that has nothing can always take
// half of what is free, whatever other tenants have. If jobs end soon, n busy tenants converge to
// equal shares. A long stream keeps what it took. A lone tenant gets half of everything.
//
// A pure function.
#ifndef HEARTH_SERVICES_SERVING_CALLS_FAIR_SHARE_H_
#define HEARTH_SERVICES_SERVING_CALLS_FAIR_SHARE_H_

#include <cstdint>

namespace hearth {

// Whether a tenant that has `own` may take `more`, if all tenants together have `taken` of `all`.
inline bool IsFairShare(uint64_t own, uint64_t more, uint64_t taken, uint64_t all) {
  return taken <= all && own + more <= all - taken;
}

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CALLS_FAIR_SHARE_H_
