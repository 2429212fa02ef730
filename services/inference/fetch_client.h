// FetchClient: a worker's fetches from a store that may be slow, down or wrong.
//
// A plan is checked against the request and the running model before a byte is used: token ids,
// cuts, position, mask, fingerprint and objects; then every slice against its digest. A store on
// the same host lends its memory (shared_fetch.h); if that fails, the same fetch goes over the
// wire. Thread safety: all methods from any thread. Ownership: connection and counters must outlive
// it, and it must outlive the bytes that it lends.
#ifndef HEARTH_SERVICES_INFERENCE_FETCH_CLIENT_H_
#define HEARTH_SERVICES_INFERENCE_FETCH_CLIENT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/cache_store.pb.h"
#include "proto/kv_layout.h"
#include "services/inference/blocking_stream.h"
#include "services/inference/cache_counters.h"
#include "services/inference/device_client.h"
#include "services/inference/object_builder.h"
#include "services/inference/store_connection.h"
#include "services/rpc/segment_client.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

// The use made of the memory that a store on the same host shares.
enum class SharedMemoryUse {
  kOff,   // bytes come over the wire
  kCopy,  // copied and verified by the fetch: objects are the caller's own
  kLend,  // verified by the fetch, copied by their user (KvObject::lent_slices)
};

using FetchStream = BlockingStream<grpc::ByteBuffer, grpc::ByteBuffer>;

class FetchClient {
 public:
  // `layout`: of the connection's fingerprint. `devices`: for a store's memory on the device that
  // the worker computes on; null: it computes elsewhere.
  FetchClient(StoreConnection* connection, const KvLayout& layout, CacheCounters* counters,
              SharedMemoryUse shared_memory, std::unique_ptr<DeviceClient> devices);

  // As PrefixCache::Fetch.
  FetchOutcome Fetch(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     absl::Time deadline);

 private:
  struct Attempt;

  absl::StatusOr<FetchOutcome> Try(Attempt* attempt);
  absl::StatusOr<v1::FetchPlan> Start(Attempt* attempt, const MappedSegment* segment,
                                      const MappedDevice* device, FetchStream* stream);
  absl::StatusOr<std::vector<std::shared_ptr<const KvObject>>> TakeObjects(
      Attempt* attempt, const v1::FetchPlan& plan,
      const std::shared_ptr<const MappedSegment>& segment, const MappedDevice* device,
      const std::shared_ptr<StoreStream>& call);

  StoreConnection* const connection_;
  const KvLayout layout_;
  CacheCounters* const counters_;
  const SharedMemoryUse shared_memory_;
  SegmentClient segments_;
  const std::unique_ptr<DeviceClient> devices_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_FETCH_CLIENT_H_
