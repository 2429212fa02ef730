#include "services/store/fetch_share.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace hearth {
namespace {

// Whether the caller mapped the memory `id`. If not, the plan offers it where that is possible.
bool IsMapped(const SegmentId& id, const std::string& socket, const std::string& mapped,
              absl::FunctionRef<v1::SharedSegment*()> offer) {
  if (socket.empty()) return false;
  const std::string bytes(id.begin(), id.end());
  if (mapped == bytes) return true;
  v1::SharedSegment* segment = offer();
  segment->set_id(bytes);
  segment->set_socket(socket);
  return false;
}

// Moves objects that lie in the shared memory from the stream into the plan.
void Share(const SharedMemoryOffer& offer, FetchSession* session, std::vector<SliceRef>* order,
           v1::FetchPlan* plan) {
  v1::SharedSlices* shared = plan->mutable_shared();
  std::vector<SliceRef> streamed;
  for (const SliceRef& slice : *order) {
    const std::optional<SegmentRange> range = session->ShareSlice(slice.object, slice.layer);
    if (!range.has_value()) {
      streamed.push_back(slice);
      continue;
    }
    shared->add_objects(slice.object);
    shared->add_layers(slice.layer);
    shared->add_offsets(range->offset);
    shared->add_generations(range->generation);
  }
  shared->set_lease_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(offer.lease)));
  *order = std::move(streamed);
}

// Moves the objects that have copies in the gpu tier out of the stream, but for remainders: what
// follows one is begun with its bytes in the caller's RAM.
void ShareOnDevice(FetchSession* session, std::vector<SliceRef>* order, v1::FetchPlan* plan) {
  const LookupPlan& stored = session->plan();
  std::vector<bool> streamed(stored.objects.size(), true);
  v1::SharedSlices* device = plan->mutable_device();
  for (uint32_t i = 0; i < stored.objects.size(); ++i) {
    const std::optional<SegmentRange> range = session->ShareOnDevice(i);
    if (!range.has_value()) continue;
    device->add_objects(i);
    device->add_offsets(range->offset);
    device->add_generations(range->generation);
    streamed[i] = stored.objects[i].id.tokens < stored.layout.chunk_tokens;
  }
  order->erase(std::remove_if(order->begin(), order->end(),
                              [&](const SliceRef& slice) { return !streamed[slice.object]; }),
               order->end());
}

}  // namespace

bool ShareWhatIsAsked(const SharedMemoryOffer& offer, const v1::FetchRequest& request,
                      FetchSession* session, std::vector<SliceRef>* order, v1::FetchPlan* plan) {
  if (request.has_device_segment_id() &&
      IsMapped(offer.device_id, offer.device_socket, request.device_segment_id(),
               [plan] { return plan->mutable_device_segment(); })) {
    ShareOnDevice(session, order, plan);
  }
  if (request.has_segment_id() && IsMapped(offer.id, offer.socket, request.segment_id(),
                                           [plan] { return plan->mutable_segment(); })) {
    Share(offer, session, order, plan);
  }
  return plan->shared().objects_size() > 0 || plan->device().objects_size() > 0;
}

}  // namespace hearth
