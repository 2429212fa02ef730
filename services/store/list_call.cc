#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache_store/base/tenant_accounts.h"
#include "services/rpc/slice_wire.h"
#include "services/serving/calls/stream_call.h"
#include "services/store/cache_service.h"
#include "services/store/store_conversion.h"

namespace hearth {
namespace {

// Returns the tenant whose restore points to list, or kAllTenants.
absl::StatusOr<std::string> ListedTenant(const Identity& caller, const std::string& asked) {
  if (asked == kAllTenants && caller.role == Role::kAdmin) return asked;
  // Without identities there is only one tenant. But a data folder may have restore points of
  // earlier tenants.
  if (asked == kAllTenants && caller.role == Role::kAnonymous) return caller.tenant;
  return caller.TenantOf(asked);
}

// ListCall: one List stream. It sends the restore points of a tenant one by one, as fast as the
// caller reads.
class ListCall final : public StreamCall {
 public:
  using StreamCall::StreamCall;

  void Start(CacheService* service, const grpc::ByteBuffer& bytes) {
    const absl::StatusOr<Identity> caller = Enter(service->admission(), "List", bytes.Length());
    if (!caller.ok()) return End(caller.status());
    v1::ListRequest request;
    if (absl::Status status = ParseSmallMessage(bytes, &request); !status.ok()) return End(status);
    const absl::StatusOr<std::string> tenant = ListedTenant(*caller, request.tenant());
    if (!tenant.ok()) return End(tenant.status());
    const absl::Status placed = call()->TakePlace(kListLimit, *caller);
    if (!placed.ok()) return End(placed);
    call()->note()->tenant = *tenant;
    if (caller->role == Role::kAdmin) context_->AddInitialMetadata("hearth-tenant-bin", *tenant);
    const auto look = [self = Shared(this), store = service->store(), tenant = *tenant] {
      std::vector<RestorePoint> points = store->List(tenant);
      absl::MutexLock lock(&self->mutex_);
      self->points_ = std::move(points);
      std::reverse(self->points_.begin(), self->points_.end());
      self->Release();
    };
    Delegate(
        [&] { return service->short_calls()->Submit(caller->ShareName(), bytes.Length(), look); });
  }

 private:
  bool TakeNext(grpc::ByteBuffer* message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    mutex_.AssertHeld();
    if (ended()) return false;
    if (points_.empty()) {
      EndLocked(absl::OkStatus());
      return false;
    }
    v1::RestorePointInfo info;
    RestorePointToProto(points_.back(), &info);
    points_.pop_back();
    *message = MessageBytes(info);
    return true;
  }

  // not sent yet; the next one is at the end
  std::vector<RestorePoint> points_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

ByteStream* StartList(CacheService* service, grpc::CallbackServerContext* context,
                      const grpc::ByteBuffer* request) {
  const auto call = std::make_shared<ListCall>(context);
  call->Start(service, TakeRequest(request));
  return call.get();
}

}  // namespace hearth
