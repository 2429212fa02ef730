// CacheService: hearth.v1.CacheStore over a TieredStore. Translates and streams; decides nothing.
//
// Fetch and Publish move byte buffers without copying them, and Watch would hold a thread for days:
// these are reactors (fetch_call.h, publish_call.h, store_watch.h) whose blocking parts run on
// threads of the service. What computes keys, which grows with the prompt, runs on a pool of the
// service in which callers take turns; the short calls run on gRPC's threads.
// Thread safety: gRPC calls the methods from many threads.
// Ownership: the store and the gate must outlive the service, and the server it is registered with.
#ifndef HEARTH_SERVICES_CACHE_SERVICE_H_
#define HEARTH_SERVICES_CACHE_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache_store/executor.h"
#include "cache_store/tiered_store.h"
#include "proto/cache_store.grpc.pb.h"
#include "services/call_gate.h"
#include "services/fair_pool.h"
#include "services/fetch_call.h"
#include "services/identity.h"
#include "services/stream_limit.h"

namespace hearth {

// Reads from disk at a time, and commits. More would wait for the same disk.
inline constexpr int kFetchReaders = 8;
inline constexpr int kPublishCommitters = 8;
// Streams at a time; one more is answered RESOURCE_EXHAUSTED. A watch has a queue of kMaxWatchQueue
// events, a publish an open slice, a fetch from disk three slices; a lease next to nothing. Workers
// have at most a fetch and a lease for each request that they run.
inline constexpr int kMaxWatchStreams = 64;
inline constexpr int kMaxPublishStreams = 64;
inline constexpr int kMaxFetchStreams = 512;
inline constexpr int kMaxLeaseStreams = 2048;
// Of these, each tenant that calls for itself.
inline constexpr int kMaxTenantWatchStreams = 8;
inline constexpr int kMaxTenantPublishStreams = 16;
inline constexpr int kMaxTenantFetchStreams = 64;
inline constexpr int kMaxTenantLeaseStreams = 64;
// Explanations at a time: a request of 3 MiB each, and for those that run 16 MiB of keys and states
// for the most cuts and chunks that a prompt can have.
inline constexpr int kMaxExplainCalls = 64;
inline constexpr int kMaxTenantExplainCalls = 8;
// Lookups at a time, and how many wait: as many as streams may be open, which are counted before.
inline FairPoolOptions LookupPool() {
  return {4, 4096, 4096, uint64_t{256} << 20, uint64_t{128} << 20};
}
// A publish that says nothing for as long holds what it staged in vain, and a fetch that takes
// nothing what it was promised.
inline constexpr absl::Duration kStreamPatience = absl::Seconds(60);

class CacheService final
    : public v1::CacheStore::WithRawCallbackMethod_Fetch<
          v1::CacheStore::WithRawCallbackMethod_Publish<v1::CacheStore::WithCallbackMethod_Watch<
              v1::CacheStore::WithCallbackMethod_Lease<v1::CacheStore::WithCallbackMethod_Explain<v1::CacheStore::Service>>>>> {
 public:
  // `identities` null: one tenant, nobody is asked.
  CacheService(TieredStore* store, CallGate* gate, std::string version,
               Identities* identities = nullptr);
  // Before the service is registered.
  void Offer(SharedMemoryOffer offer) { offer_ = std::move(offer); }
  // How long a publish may say nothing, and a fetch take nothing, before it is cancelled, at least.
  // As Offer.
  void SetPatience(absl::Duration patience) { patience_ = patience; }

  // Where keys are computed. For tests, which block it.
  FairPool* lookups() { return &lookups_; }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Fetch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Publish(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<v1::LeaseResponse>* Lease(grpc::CallbackServerContext* context,
                                                     const v1::LeaseRequest* request) override;
  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const v1::ExplainRequest* request,
                                    v1::ExplainResponse* response) override;
  grpc::Status Pin(grpc::ServerContext* context, const v1::PinRequest* request,
                   v1::PinResponse* response) override;
  grpc::Status Unpin(grpc::ServerContext* context, const v1::PinRequest* request,
                     v1::PinResponse* response) override;
  grpc::Status Drop(grpc::ServerContext* context, const v1::DropRequest* request,
                    v1::DropResponse* response) override;
  grpc::Status List(grpc::ServerContext* context, const v1::ListRequest* request,
                    grpc::ServerWriter<v1::RestorePointInfo>* writer) override;
  grpc::Status Stats(grpc::ServerContext* context, const v1::StatsRequest* request,
                     v1::StatsResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchEvent>* Watch(grpc::CallbackServerContext* context,
                                                  const v1::WatchRequest* request) override;

 private:
  // Enters the gate, finds out who calls, runs `body` with that, converts its outcome.
  template <typename Body>
  grpc::Status RunCall(const char* method, grpc::ServerContext* context, Body body);
  absl::Status DoPin(const Identity& caller, const v1::PinRequest& request, bool pinned,
                     v1::PinResponse* response);
  absl::Status DoDrop(const Identity& caller, const v1::DropRequest& request,
                      v1::DropResponse* response);
  absl::Status DoStats(const Identity& caller, const v1::StatsRequest& request,
                       v1::StatsResponse* response);

  TieredStore* const store_;
  CallGate* const gate_;
  const std::string version_;
  Identities* const identities_;
  const absl::Time start_;
  SharedMemoryOffer offer_;
  absl::Duration patience_ = kStreamPatience;
  StreamLimit publish_streams_{"publish", kMaxPublishStreams, kMaxTenantPublishStreams};
  StreamLimit watch_streams_{"watch", kMaxWatchStreams, kMaxTenantWatchStreams};
  StreamLimit fetch_streams_{"fetch", kMaxFetchStreams, kMaxTenantFetchStreams};
  StreamLimit lease_streams_{"lease", kMaxLeaseStreams, kMaxTenantLeaseStreams};
  StreamLimit explain_calls_{"explain", kMaxExplainCalls, kMaxTenantExplainCalls};
  ThreadExecutor readers_{UINT64_MAX, kFetchReaders};
  ThreadExecutor committers_{UINT64_MAX, kPublishCommitters};
  FairPool lookups_{"lookups", LookupPool()};  // last: its jobs use the others
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_CACHE_SERVICE_H_
