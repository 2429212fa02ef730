// Starts the streaming calls of hearth.v1.CacheStore.
//
// Thread safety: gRPC calls from its threads, pools and executors from theirs. Ownership: a call
// keeps itself until it is done; the service must outlive it.
#ifndef HEARTH_SERVICES_STORE_STORE_CALLS_H_
#define HEARTH_SERVICES_STORE_STORE_CALLS_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <string>

#include "absl/time/time.h"
#include "proto/segment_format.h"

namespace hearth {

class CacheService;

// Shared memory that callers on this host may read instead of the stream.
struct SharedMemoryOffer {
  SegmentId id{};
  std::string socket;  // unix socket of the SegmentServer; empty: no offer
  absl::Duration lease = absl::Seconds(10);
  SegmentId device_id{};  // segment of the gpu tier
  std::string device_socket = "";
};

// Maximum number of events that wait for a watcher. An event of a restore point has some 150 bytes:
// 64 watchers with full queues stay below 10 MiB.
inline constexpr size_t kMaxWatchQueue = 1024;
// Maximum number of tokens in one event. With their ids the event stays below 400 KiB.
inline constexpr uint32_t kMaxWatchTokens = 64 << 10;

using UploadStream = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
using ByteStream = grpc::ServerWriteReactor<grpc::ByteBuffer>;

ByteStream* StartFetch(CacheService* service, grpc::CallbackServerContext* context,
                       const grpc::ByteBuffer* request);
UploadStream* StartPublish(CacheService* service, grpc::CallbackServerContext* context);
ByteStream* StartLease(CacheService* service, grpc::CallbackServerContext* context,
                       const grpc::ByteBuffer* request);
ByteStream* StartList(CacheService* service, grpc::CallbackServerContext* context,
                      const grpc::ByteBuffer* request);
// Starts a Watch stream. It ends with UNAVAILABLE if the server drains, and with UNAUTHENTICATED or
// PERMISSION_DENIED if the caller's identity changes.
ByteStream* StartWatch(CacheService* service, grpc::CallbackServerContext* context,
                       const grpc::ByteBuffer* request);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_STORE_CALLS_H_
