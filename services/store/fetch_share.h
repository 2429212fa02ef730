// Shares the slices of a Fetch that its caller can read from the store's memory instead of the
// stream.
//
// Thread safety: the session's.
#ifndef HEARTH_SERVICES_STORE_FETCH_SHARE_H_
#define HEARTH_SERVICES_STORE_FETCH_SHARE_H_

#include <vector>

#include "cache_store/store/tiered_store.h"
#include "proto/cache_store.pb.h"
#include "services/store/slice_stream.h"
#include "services/store/store_calls.h"

namespace hearth {

// Moves slices in memory that the caller has mapped from `order`, the stream, to `plan`; offers the
// memory to a caller that has not mapped it. True: ranges were given out, until the session ends.
bool ShareWhatIsAsked(const SharedMemoryOffer& offer, const v1::FetchRequest& request,
                      FetchSession* session, std::vector<SliceRef>* order, v1::FetchPlan* plan);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_FETCH_SHARE_H_
