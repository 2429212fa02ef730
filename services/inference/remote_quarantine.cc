// RemotePrefixCache's word on what an audit found.
#include <string>
#include <vector>

#include "services/inference/remote_prefix_cache.h"
#include "services/rpc/proto_conversion.h"
#include "services/rpc/status_conversion.h"
#include "services/serving/logging.h"

namespace hearth {

bool RemotePrefixCache::Quarantine(const PrefixRequest& prefix,
                                   const std::vector<ObjectId>& objects, absl::Time deadline) {
  v1::QuarantineRequest request;
  PrefixToProto(prefix, /*with_fields=*/false, request.mutable_prefix());
  for (const ObjectId& id : objects) ToProto(id, request.add_objects());
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  const CallSet::Entry active(&calls_, &context);
  v1::QuarantineResponse response;
  const absl::Status status = FromGrpcStatus(stub_->Quarantine(&context, request, &response));
  Log(LogLevel::kWarning, "an audit found other bytes in the store than this worker computes",
      {{"tenant", prefix.tenant},
       {"tokens", prefix.token_ids.size()},
       {"objects", objects.size()},
       {"quarantined", status.ok() ? std::to_string(response.objects()) : status.ToString()}});
  return status.ok();
}

}  // namespace hearth
