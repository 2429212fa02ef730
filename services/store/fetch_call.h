// FetchCall: one Fetch stream of the store, from the plan to the last slice, without copying a
// byte.
//
// The lookup, which computes a key for each chunk and cut, runs on a pool in the caller's turn.
// Slices go out as byte buffers around the tier's own memory. While one message is on its way the
// next is read and verified; reads from disk run on an executor, so that no thread of gRPC's
// blocks. Thread safety and ownership: stream_call.h. Store, gate and executor must outlive it, and
// the limit of streams. Invariants: (1) one write and one read are in progress at most, so at most
// kReadAhead + 1 slices are held; (2) pieces go out in the order of SliceOrder; (3) what was shared
// is held until the caller cancels, goes away, or its lease expires, which begins when it is handed
// out; (4) a call whose caller takes nothing for between one and two times `patience` is cancelled,
// and holds nothing any more.
#ifndef HEARTH_SERVICES_STORE_FETCH_CALL_H_
#define HEARTH_SERVICES_STORE_FETCH_CALL_H_

#include <grpcpp/grpcpp.h>

#include <string>

#include "absl/time/time.h"
#include "cache_store/base/executor.h"
#include "cache_store/store/tiered_store.h"
#include "services/serving/calls/call_gate.h"
#include "services/serving/calls/fair_pool.h"
#include "services/serving/calls/stream_places.h"
#include "services/serving/door/identity.h"

namespace hearth {

// What callers of this host may use instead of the stream.
struct SharedMemoryOffer {
  SegmentId id{};
  std::string socket;  // of a SegmentServer; empty: nothing is offered
  absl::Duration lease = absl::Seconds(10);
  SegmentId device_id{};  // the same for the gpu tier's memory
  std::string device_socket = "";
};

// Starts the call that answers `request`, a FetchRequest.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartFetch(
    TieredStore* store, CallGate* gate, Identities* identities, FairPool* lookups,
    Executor* readers, const SharedMemoryOffer* offer, StreamPlaces* places,
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_FETCH_CALL_H_
