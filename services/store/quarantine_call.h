// One Quarantine of the store: an audit found objects to be wrong. Runs on a pool in the caller's
// turn, since it computes keys; the log says who published what is taken out.
//
// Thread safety and ownership: as explain_call.h.
#ifndef HEARTH_SERVICES_STORE_QUARANTINE_CALL_H_
#define HEARTH_SERVICES_STORE_QUARANTINE_CALL_H_

#include <grpcpp/grpcpp.h>

#include "absl/status/statusor.h"
#include "cache_store/store/tiered_store.h"
#include "proto/cache_store.pb.h"
#include "services/serving/calls/call_gate.h"
#include "services/serving/calls/fair_pool.h"
#include "services/serving/door/identity.h"

namespace hearth {

grpc::ServerUnaryReactor* StartQuarantine(TieredStore* store, CallGate* gate,
                                          Identities* identities, FairPool* lookups,
                                          grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response);

// The same for a store in this process; `auditor` is who found it.
absl::StatusOr<QuarantineResult> QuarantineAndLog(TieredStore* store, const PrefixQuery& query,
                                                  const std::vector<ObjectId>& objects,
                                                  const std::string& auditor);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_QUARANTINE_CALL_H_
