// One Lease stream of the store: a caller's turn at a prefix that it misses.
//
// Each question runs on a pool in the caller's turn: it computes a key for each chunk and cut. A
// caller that waits holds no thread: it is woken by a publish, by the end of another's lease or by
// an alarm, and asks again. The stream of one that computes stays open as its lease and ends when
// the caller is done or gone. Thread safety and ownership: stream_call.h. Store, gate, pool and the
// limit of streams must outlive it. Invariants: (1) the place in the store's tables is given up
// when the call ends, however that comes; (2) when the gate closes nobody waits on.
#ifndef HEARTH_SERVICES_STORE_LEASE_CALL_H_
#define HEARTH_SERVICES_STORE_LEASE_CALL_H_

#include <grpcpp/grpcpp.h>

#include "cache_store/store/tiered_store.h"
#include "proto/cache_store.pb.h"
#include "services/serving/calls/call_gate.h"
#include "services/serving/calls/fair_pool.h"
#include "services/serving/calls/stream_limit.h"
#include "services/serving/door/identity.h"

namespace hearth {

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartLease(TieredStore* store, CallGate* gate,
                                                       Identities* identities, FairPool* lookups,
                                                       StreamLimit* streams,
                                                       grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_LEASE_CALL_H_
