// The worker's side of a fetch through shared memory: makes objects of a plan's ranges.
//
// Each slice is copied into the builder's objects, and hashed on the way. Takes nothing on trust:
// every range must be a whole slice of the plan and have its digest. Thread safety: the client's is
// segment_client.h's; one builder a thread.
#ifndef HEARTH_SERVICES_INFERENCE_SHARED_FETCH_H_
#define HEARTH_SERVICES_INFERENCE_SHARED_FETCH_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "proto/cache_store.pb.h"
#include "proto/kv_layout.h"
#include "services/inference/device_client.h"
#include "services/inference/object_builder.h"
#include "services/rpc/segment_client.h"

namespace hearth {

// Copies the slices. kAborted: a range was used again before it was copied;
// kDataLoss: bytes with another digest; kFailedPrecondition: a plan that contradicts itself.
absl::Status CopyShared(const v1::SharedSlices& shared, const MappedSegment& segment,
                        ObjectBuilder* builder);

// Copies the objects that a plan shares on the device to this worker's own memory there, and adds
// them to `announced`, for a new builder. Errors as CopyShared; digests cannot be checked.
absl::Status CopyFromDevice(const v1::SharedSlices& shared, const KvLayout& layout,
                            const MappedDevice& device, DeviceClient* client,
                            std::vector<ObjectBuilder::Announced>* announced);

// Maps the segment that a store offers. OK when the next fetch can use it.
absl::Status TakeOffer(const v1::SharedSegment& offer, SegmentClient* client);
absl::Status TakeOffer(const v1::SharedSegment& offer, DeviceClient* client);

// The name under which a fetch is counted that must use the wire instead.
const char* FallbackReason(const absl::Status& status);

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_SHARED_FETCH_H_
