// PublishCall: one Publish stream of the store, from its begin to its ack.
//
// Slices are copied once, from gRPC's receive buffers to the memory where the store keeps them. The
// begin, which computes keys, runs on a pool in the caller's turn; the commit, which waits for the
// disk, on an executor: so that no thread of gRPC's blocks.
// Thread safety: gRPC calls the reactor from its threads, the executor from its own.
// Ownership: deletes itself in OnDone. Store, gate, executor and the places must outlive it.
// Invariants: (1) one read, one write or one commit is in progress at a time; (2) a stream holds
// one message beside what the store counts as staged; (3) Finish is called once;
// (4) a stream that hardly moves is cancelled (stream_places.h).
#ifndef HEARTH_SERVICES_STORE_PUBLISH_CALL_H_
#define HEARTH_SERVICES_STORE_PUBLISH_CALL_H_

#include <grpcpp/grpcpp.h>

#include "cache_store/base/executor.h"
#include "cache_store/store/tiered_store.h"
#include "services/serving/calls/call_gate.h"
#include "services/serving/calls/fair_pool.h"
#include "services/serving/calls/stream_places.h"
#include "services/serving/door/identity.h"

namespace hearth {

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartPublish(
    TieredStore* store, CallGate* gate, Identities* identities, FairPool* lookups,
    Executor* committers, StreamPlaces* places, grpc::CallbackServerContext* context);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_PUBLISH_CALL_H_
