// CacheService: implements hearth.v1.CacheStore by a TieredStore. It only converts and streams.
//
// Fetch and Publish move byte buffers without copying them, and Watch would hold a thread for days.
// So these calls are reactors (store_calls.h) whose blocking work runs on threads of the service,
// like the short calls. Computing keys takes time in proportion to the prompt: it runs on a pool of
// the service, in which tenants take turns. Thread safety: gRPC calls the methods from many
// threads. Ownership: the store and the admission must outlive the service and the server that it
// is registered with.
#ifndef HEARTH_SERVICES_STORE_CACHE_SERVICE_H_
#define HEARTH_SERVICES_STORE_CACHE_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache_store/base/executor.h"
#include "cache_store/store/tiered_store.h"
#include "proto/cache_store.grpc.pb.h"
#include "services/serving/access/identity.h"
#include "services/serving/calls/admission.h"
#include "services/serving/calls/fair_pool.h"
#include "services/store/fleet_table.h"
#include "services/store/store_calls.h"

namespace hearth {

// Maximum number of concurrent reads from disk. More reads would only wait for the same disk.
inline constexpr int kFetchReaders = 8;
// Maximum number of concurrent commits of publishes. More commits would only wait for the same
// disk.
inline constexpr int kPublishCommitters = 8;
// Threads and queue of short calls, most of which only look things up. One tenant gets half of the
// threads.
inline FairPoolOptions ShortCallPool() { return {14, 2048}; }
// Least bytes per window of a publish or fetch (Limit::least_bytes): these calls hold memory, so
// they must keep a pace.
inline constexpr uint64_t kHeldPace = uint64_t{1} << 20;
// Maximum number of concurrent streams of each kind. A further stream ends with RESOURCE_EXHAUSTED.
// A publish holds an open slice, a fetch from disk three slices, a watch a queue of kMaxWatchQueue
// events, and a lease almost nothing. A worker has at most a fetch and a lease for each request
// that it runs.
inline constexpr Limit kPublishLimit{"publish", 64, kHeldPace};
inline constexpr Limit kFetchLimit{"fetch", 512, kHeldPace};
inline constexpr Limit kWatchLimit{"watch", 64};
inline constexpr Limit kLeaseLimit{"lease", 2048};
inline constexpr Limit kListLimit{"list", 64};
// Maximum number of concurrent Explain calls. Each has a request of up to 3 MiB. A call that runs
// also has up to 16 MiB of keys and states, if the prompt has the most cuts and chunks.
inline constexpr Limit kExplainLimit{"explain", 64};
// Threads for lookups. As many lookups may wait as streams may be open, even those of one tenant.
inline constexpr int kLookupThreads = 6;
// Threads for lookups with a shared tier. There are more, because a lookup may wait for Redis.
inline constexpr int kSharedLookupThreads = 30;
inline FairPoolOptions LookupPool(int threads) { return {threads, 8192, uint64_t{256} << 20}; }

// All methods get raw bytes and callbacks: gRPC's threads neither wait for a call nor parse a
// request, which may be large. Otherwise callers could occupy all of these threads.
using CacheServiceBase = v1::CacheStore::WithRawCallbackMethod_Fetch<
    v1::CacheStore::WithRawCallbackMethod_Publish<v1::CacheStore::WithRawCallbackMethod_Watch<
        v1::CacheStore::WithRawCallbackMethod_Lease<v1::CacheStore::WithRawCallbackMethod_Explain<
            v1::CacheStore::WithRawCallbackMethod_Pin<v1::CacheStore::WithRawCallbackMethod_Unpin<
                v1::CacheStore::WithRawCallbackMethod_Drop<
                    v1::CacheStore::WithRawCallbackMethod_List<
                        v1::CacheStore::WithRawCallbackMethod_Quarantine<
                            v1::CacheStore::WithRawCallbackMethod_Stats<
                                v1::CacheStore::WithRawCallbackMethod_Report<
                                    v1::CacheStore::Service>>>>>>>>>>>>;

class CacheService final : public CacheServiceBase {
 public:
  CacheService(TieredStore* store, Admission* admission, std::string version,
               int lookup_threads = kLookupThreads);
  // REQUIRES: the service is not registered yet.
  void Offer(SharedMemoryOffer offer) { offer_ = std::move(offer); }
  // The members below are used by the service's calls.
  TieredStore* store() const { return store_; }
  Admission* admission() const { return admission_; }
  const SharedMemoryOffer& offer() const { return offer_; }
  FleetTable* fleet() { return &fleet_; }
  FairPool* lookups() { return &lookups_; }  // pool for computing keys
  FairPool* short_calls() { return &short_calls_; }
  Executor* readers() { return &readers_; }
  Executor* committers() { return &committers_; }

  using Bytes = grpc::ByteBuffer;
  using Context = grpc::CallbackServerContext;
  ByteStream* Fetch(Context* context, const Bytes* request) override {
    return StartFetch(this, context, request);
  }
  UploadStream* Publish(Context* context) override { return StartPublish(this, context); }
  ByteStream* Lease(Context* context, const Bytes* request) override {
    return StartLease(this, context, request);
  }
  ByteStream* List(Context* context, const Bytes* request) override {
    return StartList(this, context, request);
  }
  ByteStream* Watch(Context* context, const Bytes* request) override {
    return StartWatch(this, context, request);
  }
  grpc::ServerUnaryReactor* Explain(Context* context, const Bytes* request,
                                    Bytes* response) override;
  grpc::ServerUnaryReactor* Quarantine(Context* context, const Bytes* request,
                                       Bytes* response) override;
  grpc::ServerUnaryReactor* Pin(Context* context, const Bytes* request, Bytes* response) override;
  grpc::ServerUnaryReactor* Unpin(Context* context, const Bytes* request, Bytes* response) override;
  grpc::ServerUnaryReactor* Drop(Context* context, const Bytes* request, Bytes* response) override;
  grpc::ServerUnaryReactor* Stats(Context* context, const Bytes* request, Bytes* response) override;
  grpc::ServerUnaryReactor* Report(Context* context, const Bytes* request,
                                   Bytes* response) override;

 private:
  template <typename Request, typename Response>
  using Body = absl::Status (CacheService::*)(const Identity&, const Request&, Response*);

  // Admits the caller, parses a small request, and runs `body` on short_calls().
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* RunCall(const char* method, Context* context, const Bytes* request,
                                    Bytes* response, Body<Request, Response> body);
  template <bool kPinned>
  absl::Status DoPin(const Identity& caller, const v1::PinRequest& request,
                     v1::PinResponse* response);
  absl::Status DoDrop(const Identity& caller, const v1::DropRequest& request,
                      v1::DropResponse* response);
  absl::Status DoStats(const Identity& caller, const v1::StatsRequest& request,
                       v1::StatsResponse* response);

  TieredStore* const store_;
  Admission* const admission_;
  const std::string version_;
  const absl::Time start_;
  SharedMemoryOffer offer_;
  FleetTable fleet_;
  FairPool short_calls_{"calls", ShortCallPool()};
  ThreadExecutor readers_{UINT64_MAX, kFetchReaders};
  ThreadExecutor committers_{UINT64_MAX, kPublishCommitters};
  FairPool lookups_;  // declared after the members that its jobs use
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_CACHE_SERVICE_H_
