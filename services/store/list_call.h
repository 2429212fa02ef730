// One List stream of the store: what a tenant has stored, point by point, as fast as the caller
// takes it.
//
// Thread safety and ownership: stream_call.h. Store, gate, pool and the limit of streams must
// outlive it.
#ifndef HEARTH_SERVICES_STORE_LIST_CALL_H_
#define HEARTH_SERVICES_STORE_LIST_CALL_H_

#include <grpcpp/grpcpp.h>

#include "cache_store/store/tiered_store.h"
#include "proto/cache_store.pb.h"
#include "services/serving/calls/call_gate.h"
#include "services/serving/calls/fair_pool.h"
#include "services/serving/calls/stream_limit.h"
#include "services/serving/door/identity.h"

namespace hearth {

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartList(TieredStore* store, CallGate* gate,
                                                      Identities* identities, FairPool* calls,
                                                      StreamLimit* streams,
                                                      grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer& request);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_LIST_CALL_H_
