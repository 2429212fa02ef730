// The status page: HTML that shows what /status.json beside it says, live. It loads nothing else.
#ifndef HEARTH_SERVICES_SERVING_STATUS_PAGE_H_
#define HEARTH_SERVICES_SERVING_STATUS_PAGE_H_

namespace hearth {

extern const char kStatusPage[];

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_STATUS_PAGE_H_
