// Start the calls of hearth.v1.CacheStore that stream, or that compute keys on a pool in the
// caller's turn.
//
// Thread safety: gRPC calls from its threads, pools and executors from their own. Ownership: a call
// keeps itself until it is done; all arguments but the context, the request and the response must
// outlive it.
#ifndef HEARTH_SERVICES_STORE_STORE_CALLS_H_
#define HEARTH_SERVICES_STORE_STORE_CALLS_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache_store/base/executor.h"
#include "cache_store/store/tiered_store.h"
#include "proto/cache_store.pb.h"
#include "services/serving/calls/admission.h"
#include "services/serving/calls/fair_pool.h"
#include "services/serving/calls/limit.h"
#include "services/serving/calls/stream_call.h"
#include "services/serving/door/identity.h"

namespace hearth {

struct StoreCallParts {
  TieredStore* store = nullptr;
  Admission* admission = nullptr;
  FairPool* lookups = nullptr;  // computes keys
  FairPool* short_calls = nullptr;
  absl::Duration patience = kStreamPatience;  // with callers that read streams
};

// Memory that callers on this host may read instead of the stream.
struct SharedMemoryOffer {
  SegmentId id{};
  std::string socket;  // of a SegmentServer; empty: nothing is offered
  absl::Duration lease = absl::Seconds(10);
  SegmentId device_id{};  // the same for the gpu tier's memory
  std::string device_socket = "";
};

// A restore point's event has some 150 bytes: 64 watchers at this depth stay below 10 MiB.
inline constexpr size_t kMaxWatchQueue = 1024;
// In one event; with their ids below 400 KiB.
inline constexpr uint32_t kMaxWatchTokens = 64 << 10;

using ByteStream = grpc::ServerWriteReactor<grpc::ByteBuffer>;

ByteStream* StartFetch(const StoreCallParts& parts, Executor* readers,
                       const SharedMemoryOffer* offer, Limit* places,
                       grpc::CallbackServerContext* context, const grpc::ByteBuffer* request);
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartPublish(
    const StoreCallParts& parts, Executor* committers, Limit* places,
    grpc::CallbackServerContext* context);
ByteStream* StartLease(const StoreCallParts& parts, Limit* streams,
                       grpc::CallbackServerContext* context, const grpc::ByteBuffer* request);
ByteStream* StartList(const StoreCallParts& parts, Limit* streams,
                      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request);
// The stream ends with UNAVAILABLE when the server drains, with UNAUTHENTICATED or
// PERMISSION_DENIED when the caller's identity changes.
ByteStream* StartWatch(const StoreCallParts& parts, Limit* streams,
                       grpc::CallbackServerContext* context, const grpc::ByteBuffer* request);

grpc::ServerUnaryReactor* StartExplain(const StoreCallParts& parts, Limit* calls,
                                       grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request, grpc::ByteBuffer* response);
// An audit found wrong objects: the log names their publishers.
grpc::ServerUnaryReactor* StartQuarantine(const StoreCallParts& parts,
                                          grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response);
// The same for a store in this process; `auditor` is the worker that found it.
absl::StatusOr<QuarantineResult> QuarantineAndLog(TieredStore* store, const PrefixQuery& query,
                                                  const std::vector<ObjectId>& objects,
                                                  const std::string& auditor);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_STORE_CALLS_H_
