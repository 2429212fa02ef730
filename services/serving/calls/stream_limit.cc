#include "services/serving/calls/stream_limit.h"

#include <cassert>

#include "absl/strings/str_cat.h"

namespace hearth {

absl::Status TenantIsAtLimit(const std::string& kind, int limit, const std::string& tenant) {
  return absl::ResourceExhaustedError(
      absl::StrCat(kind, ": ", limit, " streams of tenant \"", tenant,
                   "\" are open, which is its limit; try again later"));
}

absl::Status AllAreAtLimit(const std::string& kind, int limit) {
  return absl::ResourceExhaustedError(
      absl::StrCat(kind, ": ", limit, " streams are open, which is the limit; try again later"));
}

StreamLimit::~StreamLimit() {
  absl::MutexLock lock(&mutex_);
  assert(open_ == 0);
}

absl::StatusOr<std::shared_ptr<void>> StreamLimit::Enter(const Identity& caller, int weight) {
  assert(weight >= 1);
  const std::string tenant = caller.sees_all() ? "" : caller.tenant;
  absl::MutexLock lock(&mutex_);
  if (!tenant.empty() && each_tenant_ > 0 && open_of_[tenant] + weight > each_tenant_) {
    return TenantIsAtLimit(kind_, each_tenant_, tenant);
  }
  const bool has_some = open_of_.contains(tenant) && open_of_[tenant] > 0;
  const int most = has_some && all_ > 1 ? all_ - 1 : all_;
  if (all_ > 0 && open_ + weight > most) return AllAreAtLimit(kind_, all_);
  open_ += weight;
  if (!tenant.empty()) open_of_[tenant] += weight;
  return std::shared_ptr<void>(this, [this, tenant, weight](void*) { Release(tenant, weight); });
}

void StreamLimit::Release(const std::string& tenant, int weight) {
  absl::MutexLock lock(&mutex_);
  assert(open_ >= weight);
  open_ -= weight;
  const auto it = open_of_.find(tenant);
  assert(tenant.empty() || (it != open_of_.end() && it->second >= weight));
  if (it != open_of_.end() && (it->second -= weight) <= 0) open_of_.erase(it);
}

}  // namespace hearth
