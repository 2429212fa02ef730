// One Watch stream: what is stored, then the store's events, to one caller.
//
// The snapshot is taken once, with the place in the events at which it is true, and sent as fast as
// the caller reads (some 300 bytes a restore point are held until then). Events wait behind it in a
// bounded queue: a caller that reads too slowly loses events rather than holding up the store; the
// queue is emptied and one LOST event takes its place. Thread safety and ownership: stream_call.h;
// events come from the store's threads.
#ifndef HEARTH_SERVICES_STORE_STORE_WATCH_H_
#define HEARTH_SERVICES_STORE_STORE_WATCH_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstddef>

#include "cache_store/store/tiered_store.h"
#include "proto/cache_store.pb.h"
#include "services/serving/calls/call_gate.h"
#include "services/serving/calls/stream_limit.h"
#include "services/serving/door/identity.h"

namespace hearth {

// A restore point's event has some 150 bytes: 64 watchers at this depth stay below 10 MiB.
inline constexpr size_t kMaxWatchQueue = 1024;

// When the gate closes the stream ends with UNAVAILABLE, and when its caller is no longer who it
// was with UNAUTHENTICATED or PERMISSION_DENIED. All pointers must outlive the call.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartWatch(TieredStore* store, CallGate* gate,
                                                       Identities* identities, StreamLimit* streams,
                                                       grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer& request);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_STORE_WATCH_H_
