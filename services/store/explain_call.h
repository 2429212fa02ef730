// One Explain of the store, on a pool in the caller's turn: it computes a key for each chunk and
// cut of the prompt and looks at every boundary.
//
// Thread safety: gRPC calls from its threads, the pool from its own. Ownership: store, gate, pool
// and the limit must outlive the call.
#ifndef HEARTH_SERVICES_STORE_EXPLAIN_CALL_H_
#define HEARTH_SERVICES_STORE_EXPLAIN_CALL_H_

#include <grpcpp/grpcpp.h>

#include "cache_store/store/tiered_store.h"
#include "proto/cache_store.pb.h"
#include "services/serving/calls/call_gate.h"
#include "services/serving/calls/fair_pool.h"
#include "services/serving/calls/stream_limit.h"
#include "services/serving/door/identity.h"

namespace hearth {

grpc::ServerUnaryReactor* StartExplain(TieredStore* store, CallGate* gate, Identities* identities,
                                       FairPool* lookups, StreamLimit* calls,
                                       grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request, grpc::ByteBuffer* response);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_EXPLAIN_CALL_H_
