// Converts a store's answers about restore points to protobuf messages, for the service and for
// programs that open a store without one.
//
// Thread safety: pure functions.
#ifndef HEARTH_SERVICES_STORE_RESULT_CONVERSION_H_
#define HEARTH_SERVICES_STORE_RESULT_CONVERSION_H_

#include "cache_store/store/tiered_store.h"
#include "proto/cache_store.pb.h"

namespace hearth {

void ResultToProto(const PublishResult& result, v1::PublishAck* out);
void RestorePointToProto(const RestorePoint& point, v1::RestorePointInfo* out);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_RESULT_CONVERSION_H_
