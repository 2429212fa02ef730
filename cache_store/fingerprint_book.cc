#include "cache_store/fingerprint_book.h"

namespace hearth {

std::shared_ptr<const KnownFingerprint> FingerprintBook::Learn(const Fingerprint& fingerprint,
                                                               const std::string& tenant) {
  if (auto known = Find(fingerprint.digest(), tenant); known != nullptr) return known;
  absl::StatusOr<KvLayout> layout = fingerprint.Layout();
  if (!layout.ok()) return nullptr;
  auto known =
      std::make_shared<const KnownFingerprint>(KnownFingerprint{fingerprint, *std::move(layout)});
  if (by_tenant_.size() >= kMaxTenants && by_tenant_.count(tenant) == 0) return known;
  auto& list = by_tenant_[tenant];
  list.push_back(known);
  if (list.size() > kMaxPerTenant) list.pop_front();
  return known;
}

std::shared_ptr<const KnownFingerprint> FingerprintBook::Find(const Digest& digest,
                                                              const std::string& tenant) const {
  const auto it = by_tenant_.find(tenant);
  if (it == by_tenant_.end()) return nullptr;
  for (const auto& known : it->second) {
    if (known->fingerprint.digest() == digest) return known;
  }
  return nullptr;
}

std::vector<std::shared_ptr<const KnownFingerprint>> FingerprintBook::Of(
    const std::string& tenant) const {
  const auto it = by_tenant_.find(tenant);
  if (it == by_tenant_.end()) return {};
  return {it->second.begin(), it->second.end()};
}

}  // namespace hearth
