#include "cache_store/base/staged_bytes.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"

namespace hearth {

absl::Status StagedBytes::Reserve(const std::string& tenant, uint64_t bytes,
                                  uint64_t most_of_tenant) {
  absl::MutexLock lock(&mutex_);
  assert(bytes_ <= limit_bytes_);
  assert(bytes_ > 0 || of_tenant_.empty());
  if (bytes == 0) return absl::OkStatus();  // Release() would not erase the tenant's entry
  if (bytes > limit_bytes_ - bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the received bytes of uncommitted publishes would exceed max_staged_bytes, ",
                     limit_bytes_, "; try again later"));
  }
  const auto it = of_tenant_.find(tenant);
  const uint64_t staged = it == of_tenant_.end() ? 0 : it->second;
  if (most_of_tenant > 0 && bytes > most_of_tenant - std::min(staged, most_of_tenant)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("quota: the tenant's running publishes hold ", staged,
                     " bytes that are not committed; at most ", most_of_tenant,
                     "; try again after one of them has ended"));
  }
  of_tenant_[tenant] = staged + bytes;
  bytes_ += bytes;
  most_bytes_ = std::max(most_bytes_, bytes_);
  assert(bytes_ <= limit_bytes_ && staged + bytes <= bytes_);
  return absl::OkStatus();
}

void StagedBytes::Release(const std::string& tenant, uint64_t bytes) {
  if (bytes == 0) return;
  absl::MutexLock lock(&mutex_);
  const auto it = of_tenant_.find(tenant);
  assert(it != of_tenant_.end() && it->second >= bytes && bytes_ >= bytes);
  bytes_ -= bytes;
  it->second -= bytes;
  if (it->second == 0) of_tenant_.erase(it);
}

uint64_t StagedBytes::bytes() const {
  absl::MutexLock lock(&mutex_);
  return bytes_;
}

uint64_t StagedBytes::most_bytes() const {
  absl::MutexLock lock(&mutex_);
  return most_bytes_;
}

}  // namespace hearth
